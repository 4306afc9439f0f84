"""A picture with its figures as one page that opens from disk, without a server or a network."""

from importlib import resources

from muster.pictures import Picture
from muster.view.bundling import one_script
from muster.view.export import in_one_file
from muster.view.server import packed, page_files

_FOLDER = "picture"
_PAGE, _START, _STYLE = "picture.html", "picture.js", "picture.css"


def picture_page(picture: Picture) -> str:
    """The page as HTML: text, tables and figures, light and dark, drawn by plotly's own script inside it."""
    files = {name: body.decode("utf-8") for name, (body, _) in page_files().items()}
    own = resources.files("muster.view").joinpath(_FOLDER)
    plotly = resources.files("plotly").joinpath("package_data", "plotly.min.js")
    files |= {name: own.joinpath(name).read_text(encoding="utf-8") for name in (_PAGE, _START, _STYLE)}
    return in_one_file(
        files[_PAGE],
        styles=[files["page.css"], files[_STYLE]],
        script=one_script(files, _START),
        data=packed(picture.to_plain()),
        before=[plotly.read_text(encoding="utf-8")],
    )

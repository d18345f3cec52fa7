"""Tables, figures and one HTML page of a study, made from its files alone.

`read_study` and `read_run` read folders; `verdict_table`, `status_table` and `run_table` print to a terminal;
`plots.forest`, `plots.curves`, `plots.gradients` and `plots.cost` draw; `write_page` writes `report.html`.
"""

from isoflop.report.page import write_page
from isoflop.report.read import Run, Study, read_results, read_run, read_study
from isoflop.report.results import Results
from isoflop.report.tables import run_table, status_table, verdict_table

__all__ = [
    "Results",
    "Run",
    "Study",
    "read_results",
    "read_run",
    "read_study",
    "run_table",
    "status_table",
    "verdict_table",
    "write_page",
]

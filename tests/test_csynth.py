"""Vitis's csynth.xml beside the model. The report is made by hand, after UG1399: there is none of this kernel yet."""

import json

import pytest

from bttlab.cli import main
from bttlab.errors import BttlabError
from bttlab.estimate.csynth import LOOP, compare, read_csynth
from bttlab.estimate.recorded import SOURCE, machine_record
from bttlab.estimate.resources import resources

REPORT = """<?xml version="1.0" encoding="UTF-8"?>
<profile>
  <ReportVersion><Version>2022.2</Version></ReportVersion>
  <UserAssignments>
    <unit>ns</unit>
    <Part>xcu50-fsvh2104-2-e</Part>
    <TopModelName>{top}</TopModelName>
    <TargetClockPeriod>5.00</TargetClockPeriod>
    <ClockUncertainty>1.35</ClockUncertainty>
  </UserAssignments>
  <PerformanceEstimates>
    <SummaryOfTimingAnalysis><unit>ns</unit><EstimatedClockPeriod>{period}</EstimatedClockPeriod></SummaryOfTimingAnalysis>
    <SummaryOfOverallLatency><Worst-caseLatency>undef</Worst-caseLatency></SummaryOfOverallLatency>
  </PerformanceEstimates>
  <AreaEstimates>
    <Resources>
      <BRAM_18K>{bram}</BRAM_18K><DSP>{dsp}</DSP><FF>{ff}</FF><LUT>{lut}</LUT><URAM>{uram}</URAM>
    </Resources>
    <AvailableResources>
      <BRAM_18K>2688</BRAM_18K><DSP>5952</DSP><FF>1743360</FF><LUT>871680</LUT><URAM>640</URAM>
    </AvailableResources>
  </AreaEstimates>
  <ModuleInformation>
    <Module>
      <Name>trainer_Pipeline_Prepare</Name>
      <PerformanceEstimates>
        <SummaryOfLoopLatency>
          <Prepare><Name>Prepare</Name><PipelineII>1</PipelineII><PipelineDepth>4</PipelineDepth></Prepare>
        </SummaryOfLoopLatency>
      </PerformanceEstimates>
    </Module>
    <Module>
      <Name>trainer_Pipeline_{loop}</Name>
      <PerformanceEstimates>
        <SummaryOfLoopLatency>
          <{loop}>
            <Name>{loop}</Name><TripCount>undef</TripCount>
            <PipelineII>{interval}</PipelineII><PipelineDepth>{depth}</PipelineDepth>
          </{loop}>
        </SummaryOfLoopLatency>
      </PerformanceEstimates>
    </Module>
  </ModuleInformation>
</profile>
"""


@pytest.fixture
def report(tmp_path):
    """Return a function that writes a report, as the model has it where nothing else is said."""
    taken = resources(machine_record())
    as_modelled = {
        "top": "trainer",
        "period": "3.65",
        "bram": round(2 * taken.total("bram36").mid),
        "dsp": round(taken.total("dsps").mid),
        "ff": round(taken.total("flip_flops").mid),
        "lut": round(taken.total("lookup_tables").mid),
        "uram": round(taken.total("uram").mid),
        "loop": LOOP,
        "interval": 1,
        "depth": machine_record().stages,
    }

    def write(**changes):
        path = tmp_path / "csynth.xml"
        path.write_text(REPORT.format(**as_modelled | changes))
        return path

    return write


def test_the_loop_has_its_label_in_the_source():
    text = (SOURCE / "machine.h").read_text()
    assert f"\n{LOOP}:\n" in text and "PIPELINE II=1" in text[text.index(f"\n{LOOP}:\n") :][:120]


def test_a_report_as_the_model_says_agrees(report, capsys):
    rows = compare(machine_record(), read_csynth(report()))
    assert [row.name for row in rows] == [
        *("interval", "depth", "clock", "LUTs", "flip-flops", "DSPs", "BRAM36", "UltraRAM blocks"),
    ]
    assert all(row.agrees for row in rows) and rows[2].synthesised == pytest.approx(1e3 / 3.65)
    assert main(["schedule", "--csynth", str(report())]) == 0
    assert "differs" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"interval": 3}, "interval"),
        ({"depth": 400}, "depth"),
        ({"period": "6.2"}, "clock"),
        ({"dsp": 15000}, "DSPs"),
        ({"lut": 3_000_000}, "LUTs"),
        ({"ff": 10}, "flip-flops"),
        ({"bram": 2 * 1300}, "BRAM36"),
        ({"uram": 700}, "UltraRAM blocks"),
    ],
)
def test_what_differs_is_named(report, capsys, changes, name):
    assert main(["schedule", "--csynth", str(report(**changes)), "--json"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in data["figures"] if not row["agrees"]] == [name] and not data["agrees"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "No such file"),
        ("no XML", "is no XML"),
        ("<profile/>", "has no UserAssignments/TopModelName"),
        ({"top": "vadd"}, "is of the kernel 'vadd'"),
        ({"lut": "undef"}, "LUT is 'undef', no number"),
        ({"loop": "Other"}, "no pipelined loop Cycles"),
    ],
)
def test_an_odd_file_is_one_line(report, capsys, tmp_path, text, message):
    path = tmp_path / "missing.xml"
    if isinstance(text, dict):
        path = report(**text)
    elif text is not None:
        path.write_text(text)
    with pytest.raises(BttlabError, match=message):
        read_csynth(path)
    assert main(["schedule", "--csynth", str(path)]) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1 and message in captured.err and not captured.out

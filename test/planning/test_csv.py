"""The MiniMalloc format and the command line around it."""

import io
from pathlib import Path

import pytest

from occamy_xdsl.planning.__main__ import main
from occamy_xdsl.planning.csv import read_buffers, write_buffers
from occamy_xdsl.planning.intervals import Buffer

# Of the three, a and b meet at positions 4 and 5, b and c at 8: 30 bytes are needed.
TEXT = "id,lower,upper,size\na,0,6,10\nb,4,9,20\nc,8,12,10\n"


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "in.csv"
    path.write_text(TEXT)
    return str(path)


def test_round_trip():
    buffers = read_buffers(io.StringIO(TEXT))
    assert buffers == [Buffer("a", 0, 6, 10), Buffer("b", 4, 9, 20), Buffer("c", 8, 12, 10)]
    written = io.StringIO()
    write_buffers(written, buffers)
    assert written.getvalue() == TEXT
    assert read_buffers(io.StringIO("size,upper,id,alignment,lower\r\n8,2,x,64,1\r\n\r\n")) == [
        Buffer("x", 1, 2, 8, 64)
    ]


def test_offsets_go_into_a_column(file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main([file, "-o", str(tmp_path / "out.csv")]) == 0
    assert capsys.readouterr().out == "height 30\nlower bound 30\n"
    header, *rows = (tmp_path / "out.csv").read_text().splitlines()
    assert header == "id,lower,upper,size,offset"
    offsets = {row.split(",")[0]: int(row.split(",")[-1]) for row in rows}
    assert offsets in ({"a": 0, "b": 10, "c": 0}, {"a": 20, "b": 0, "c": 20})


def test_standard_streams(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\xef\xbb\xbf" + TEXT.encode())))
    assert main(["-", "-o", "-", "--alignment", "16"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("id,lower,upper,size,offset\na,0,6,10,")
    assert err == "height 36\nlower bound 36\n"  # 16 bytes for a or c, 20 for b


@pytest.mark.parametrize(("capacity", "status"), [("30", 0), ("29", 4)])
def test_capacity(file: str, capacity: str, status: int, capsys: pytest.CaptureFixture[str]):
    assert main([file, "--capacity", capacity]) == status
    expected = "" if status == 0 else "error: 30 bytes exceed the capacity of 29: no plan is that low\n"
    assert capsys.readouterr().err == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: the header must be id,lower,upper,size[,alignment], got ''"),
        ("id,lower,size\n", "line 1: the header must be"),
        ("id,lower,upper,size,gaps\n", "line 1: the header must be"),
        ("id,lower,upper,size,size\n", "line 1: the header must be"),
        (TEXT + "a,1,2,3\n", "line 5: id 'a' comes twice"),
        (TEXT + "d,1,2\n", "line 5: expected 4 fields, got 3"),
        (TEXT + "d,1,2,x\n", "line 5: invalid literal for int() with base 10: 'x'"),
        (TEXT + "d,2,2,3\n", "line 5: live range [2, 2) is empty"),
        (TEXT + f"d,1,2,{1 << 80}\n", "sizes must sum up to less than 2**62 bytes"),
        (TEXT + f"d,1,{1 << 80},1\n", "positions must lie within 62 bits"),
        (TEXT + "d,1,2,\0\n", "line 5"),
        (TEXT + "d,1,2," + "9" * 200_000, "line 5: field larger than field limit (131072)"),
    ],
)
def test_bad_files(text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "bad.csv"
    path.write_text(text)
    with pytest.raises(SystemExit, match="2"):
        main([str(path)])
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"error: {path}: ")
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["nowhere.csv"],
        ["{file}", "--frob"],
        ["{file}", "--planner", "x"],
        ["{file}", "--alignment", "0"],
        ["{file}", "--capacity", "x"],
        ["{file}", "--time-limit", "nan"],
        ["{file}", "-o", "no/such/folder"],
    ],
)
def test_bad_usage(arguments: list[str], file: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit, match="2"):
        main([argument.replace("{file}", file) for argument in arguments])
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1

"""Headings: which line is one, which column has which role, and that none is ever taken for another."""

from pathlib import Path

import pytest

from bridgemem.errors import DataError
from bridgemem.events.readers.read import ReadOptions, read_events
from builders import named_rows


@pytest.fixture
def write(tmp_path):
    def write(content: str, name: str = "events.tsv") -> Path:
        path = tmp_path / name
        path.write_text(content, encoding="utf-8")
        return path

    return write


@pytest.mark.parametrize(
    "heading",
    [
        "subject,relation,object,time",
        "Subject,RELATION,Object,Time",
        "s,r,o,t",
        "source,rel,target,timestamp",
        "head,predicate,tail,date",
        "actor1,event,actor2,day",
        " actor1 , type , actor2 , date ",
        '"subject","relation","object","time"',
    ],
)
def test_headings_and_their_synonyms_are_recognised(write, heading):
    assert named_rows(read_events(write(f"{heading}\nAnn,pays,Bob,5\n", "e.csv"))) == [("Ann", "pays", "Bob", "5")]


def test_columns_may_stand_in_any_order_among_others(write):
    path = write("id,time,note,object,subject,relation\n9,5,x,Bob,Ann,pays\n", "e.csv")
    assert named_rows(read_events(path)) == [("Ann", "pays", "Bob", "5")]


def test_a_column_mapping_wins_over_synonyms(write):
    path = write("who,did,to,when,time\nAnn,pays,Bob,5,99\n", "e.csv")
    assert named_rows(read_events(path, ReadOptions("who", "did", "to", "when"))) == [("Ann", "pays", "Bob", "5")]


def test_a_fifth_column_without_heading_is_ignored_and_padding_is_stripped(write):
    reading = read_events(write("563  \t5    \t562\t5760\t0\n1583 \t0    \t4213\t5784\t0\n"), ReadOptions(step=24))
    assert named_rows(reading) == [("563", "5", "562", "5760"), ("1583", "0", "4213", "5784")]


def test_a_fifth_column_of_text_without_heading_is_an_error(write):
    with pytest.raises(DataError, match="fifth column"):
        read_events(write("0\t1\t2\t3\tfoo\n0\t1\t2\t4\tbar\n"))


def test_a_heading_that_is_not_known_is_no_event(write):
    path = write("sender,receiver,verb,day\nA,B,r,1\nB,A,r,2\n", "e.csv")
    with pytest.raises(DataError, match=r"'sender', 'receiver', 'verb', 'day': name the columns with load\(") as error:
        read_events(path)
    assert "\n" not in str(error.value)
    assert str(error.value).index("load(") < str(error.value).index("on the command line with --subject-column")
    with pytest.raises(DataError, match=r'load\(..., subject="..."') as error:
        read_events({"sender": ["A"], "receiver": ["B"], "verb": ["r"], "day": [1]})
    assert "--" not in str(error.value)
    named = ReadOptions(subject="sender", relation="verb", object="receiver")
    assert named_rows(read_events(path, named)) == [("A", "r", "B", "1"), ("B", "r", "A", "2")]
    with pytest.raises(DataError, match="has no column for subject, relation, object"):
        read_events(write("day,sender,verb,receiver\n2024-01-01,A,r,B\n", "e.csv"))
    with pytest.raises(DataError, match="fix line 1"):
        read_events(write("A,r,B,yesterday\nA,r,B,2024-01-01\n", "e.csv"))


@pytest.mark.parametrize("first", ["A,r,B,3", "A,r,B,2024-01-01", '"A","r","B","3"', "1,2,3,soon", "some notes"])
def test_a_file_without_a_heading_is_read_by_position(write, first):
    time = "2024-01-02" if "2024" in first else "4"
    reading = read_events(write(f"{first}\nB,r,A,{time}\n", "e.csv"))
    assert len(reading.events) + reading.rejects.count == 2
    assert reading.rejects.count == (first in ("1,2,3,soon", "some notes"))


@pytest.mark.parametrize(
    "above", ["sep=;", "SEP=;", "# made on Monday; by hand", "A title", "# one\n\n# two", "a;b;c;d;e;f"]
)
@pytest.mark.parametrize("quote", ["", '"'])
def test_what_stands_above_a_heading_is_no_row_and_moves_no_column(write, above, quote):
    rows = ["object;relation;subject;time", "B;pays;A;2024-01-01", "C;pays;B;2024-01-02"]
    written = "\n".join(quote + row.replace(";", f"{quote};{quote}") + quote for row in rows)
    reading = read_events(write(f"{above}\n{written}\n", "e.csv"), strict=True)
    assert named_rows(reading) == [("A", "pays", "B", "2024-01-01"), ("B", "pays", "C", "2024-01-02")]
    assert reading.columns["subject"] == "subject"


@pytest.mark.parametrize("above", ["sep=;", "# a comment", "A title", "event"])
def test_an_unknown_heading_below_other_lines_is_no_event(write, above):
    with pytest.raises(DataError, match=r"has no column for .* fix line 2, if it is an event"):
        read_events(write(f"{above}\nwhom;did;who;when\nB;pays;A;2024-01-01\nC;pays;B;2024-01-02\n", "e.csv"))


def test_a_heading_of_another_width_than_the_rows_is_not_passed_over(write):
    with pytest.raises(DataError, match="fix line 1"):
        read_events(write("whom,did,who,when,\nB,pays,A,2024-01-01\n", "e.csv"))


def test_comments_above_rows_without_a_heading_are_no_rows(write):
    reading = read_events(write("# made by hand\n#metoo\tpays\tBob\t5\nAnn\tpays\tBob\t6\n"), strict=True)
    assert named_rows(reading) == [("#metoo", "pays", "Bob", "5"), ("Ann", "pays", "Bob", "6")]


@pytest.mark.parametrize("heading", ["subject,relation,object,time,time", "time,subject,Relation,object,relation"])
def test_two_columns_of_one_name_are_refused(write, heading):
    with pytest.raises(DataError, match=r"two columns called '(time|Relation)': rename"):
        read_events(write(f"{heading}\n1,2,3,4,5\n", "e.csv"))


def test_one_column_is_not_taken_for_two_roles(write):
    same = ReadOptions(subject="subject", relation="subject")
    path = write("subject,relation,object,time\nA,r,B,1\n", "e.csv")
    for source in (path, {"subject": ["A"], "relation": ["r"], "object": ["B"], "time": [1]}):
        with pytest.raises(DataError, match="'subject' cannot be both subject and relation"):
            read_events(source, same)

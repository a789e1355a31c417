"""`ratelimit init`, and who offers it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ratelimit_service.errors import RulesError
from ratelimit_service.rules.from_files import FromFiles
from ratelimit_service.rules.json_schema import MODELINE, json_schema
from ratelimit_service.rules.lint import lint
from tests.cli.inside import Inside


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_first_file(ratelimit: Inside) -> None:
    """Without a name it is rules/first.yaml; nothing is wrong in it, not even a hint."""
    result = ratelimit("init")

    path = Path("rules/first.yaml")
    first = path.read_text().splitlines()[0]
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith("wrote rules/first.yaml\nwrote rules/.schema.json, for editors\n")
    assert lint([Path("rules")]).problems == ()
    assert (path.parent / first.removeprefix(MODELINE)).read_text() == json_schema()


def test_what_it_says_to_do_next(ratelimit: Inside) -> None:
    """The commands in the file's own comment are ones that work on it."""
    ratelimit("init", "mine.yaml")

    assert ratelimit("lint", "mine.yaml").code == 0
    answer = ratelimit("explain", "--rules", "mine.yaml", "api", "user=alice")
    assert "60 per minute" in answer.out
    text = Path("mine.yaml").read_text()
    for command in ("lint mine.yaml", "explain --rules mine.yaml api user=alice"):
        assert f"#   ratelimit {command} " in text


def test_never_overwrites(ratelimit: Inside) -> None:
    """A file that is there stays as it is; so does a schema."""
    Path("mine.yaml").write_text("mine")
    Path(".schema.json").write_text("mine")

    refused = ratelimit("init", "mine.yaml")
    second = ratelimit("init", "second.yaml")

    assert refused == (2, "", "ratelimit: mine.yaml is there already: name another file\n")
    assert second.out == "wrote second.yaml\nnext: ratelimit serve --rules second.yaml\n"
    assert Path("mine.yaml").read_text() == Path(".schema.json").read_text() == "mine"


def test_beside_other_rules(ratelimit: Inside) -> None:
    """A new file gets a domain that no rule file beside it has, and says so: nothing contradicts.

    What is no rule file does not matter.
    """
    Path("rules/x.yaml").mkdir(parents=True)
    Path("rules/gone.yaml").symlink_to("nowhere")
    Path("rules/api.test.yaml").write_text("domain: api-2\n")
    Path("rules/text.yaml").write_text("- just\n- text: [\n")

    result = [ratelimit("init", f"rules/{name}.yaml").out for name in ("one", "two", "three")]
    for name in ("api.test.yaml", "gone.yaml", "text.yaml"):
        Path("rules", name).unlink()

    assert "domain" not in result[0]
    assert "\nits domain is api-2, since rules/one.yaml has api already\n" in result[1]
    assert "\nits domain is api-3, since rules/one.yaml has api already\n" in result[2]
    assert lint([Path("rules")]).problems == ()
    answer = ratelimit("explain", "--rules", "rules", "api-3", "user=alice")
    assert "60 per minute" in answer.out
    for command in ("explain --rules rules/three.yaml api-3 user=alice", "hit api-3 user=alice"):
        assert f"#   ratelimit {command}" in Path("rules/three.yaml").read_text()


@pytest.mark.parametrize(
    ("name", "why"),
    [
        (".", ". is a directory: name a file in it, as first.yaml"),
        ("file/x.yaml", "file/x.yaml cannot be written: "),
    ],
)
def test_where_none_can_be(ratelimit: Inside, name: str, why: str) -> None:
    """What cannot be written is told in one line."""
    Path("file").touch()

    result = ratelimit("init", name)

    assert (result.code, result.out) == (2, "")
    assert result.err.startswith(f"ratelimit: {why}")
    assert result.err.count("\n") == 1


@pytest.mark.parametrize(
    ("path", "offered"),
    [("empty", "empty/first.yaml"), ("no", "no/first.yaml"), ("a.yml", "a.yml")],
)
def test_serve_offers_it(path: str, offered: str) -> None:
    """Who serves without rules is told how to write some; who has rules that fail is not."""
    Path("empty").mkdir()
    Path("loop").symlink_to("loop")

    with pytest.raises(RulesError, match=f"or write a first rule file: ratelimit init {offered}$"):
        FromFiles(Path(path)).first(None)
    with pytest.raises(RulesError, match=r"--rules PATH$"):
        FromFiles(Path("loop")).first(None)

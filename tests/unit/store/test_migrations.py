"""The files of the migrations."""

from pathlib import Path

from alembic.script import ScriptDirectory

from headrace.store import migrate


def test_the_files_are_one_line_of_revisions_named_after_them() -> None:
    """What is read from the files' names is what alembic reads from the files."""
    scripts = ScriptDirectory(str(Path(migrate.__file__).parent / "migrations"))
    assert [script.revision for script in scripts.walk_revisions()][::-1] == migrate.revisions()
    assert scripts.get_heads() == [migrate.revisions()[-1]]

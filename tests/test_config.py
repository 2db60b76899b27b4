"""Settings: parsing, errors, conflicts, and the generated page."""

import dataclasses
from pathlib import Path

import pytest

from tools.docs.configuration import reference
from topics.config import SETTINGS, TIERS, BadSettings, Setting, Settings, unknown_variables
from topics.setting_kinds import GIB, KIB, MIB

ROOT = Path(__file__).resolve().parent.parent


def load(env: dict[str, str] | None = None, **flags: str) -> Settings:
    return Settings.load(env or {}, flags)


def problems(env: dict[str, str] | None = None, **flags: str) -> list[str]:
    with pytest.raises(BadSettings) as caught:
        load(env, **flags)
    return caught.value.problems


def test_defaults_are_those_of_the_table():
    settings = load()
    assert settings == Settings()
    assert (settings.host, settings.port, settings.data_dir) == ("127.0.0.1", 4000, None)
    assert (settings.max_record_bytes, settings.max_body_bytes) == (MIB, 64 * MIB)


def test_flag_overrides_variable_and_variable_overrides_default():
    env = {"TOPICS_PORT": "5000", "TOPICS_MAX_LIMIT": "10"}
    settings = load(env, port="6000")
    assert (settings.port, settings.max_limit) == (6000, 10)


def test_empty_value_and_empty_flag_count_as_unset():
    assert load({"TOPICS_PORT": "", "TOPICS_LOG_LEVEL": " "}) == Settings()
    assert load({"TOPICS_MAX_LIMIT": "7"}, max_limit="").max_limit == 1000


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4096", 4096),
        ("64MiB", 64 * MIB),
        ("1GiB", GIB),
        ("8k", 8 * KIB),
        ("8K", 8 * KIB),
        ("2M", 2 * MIB),
        ("1G", GIB),
        ("16 MiB", 16 * MIB),
    ],
)
def test_sizes_take_bytes_and_binary_units(text: str, size: int):
    assert load(max_body_bytes=text, max_record_bytes="1k", max_meta_bytes="1k").max_body_bytes == size


@pytest.mark.parametrize("text", ["1MB", "1.5MiB", "-1", "MiB", "64mib", "1_000", "٣", "1" * 30])
def test_ambiguous_size_is_refused(text: str):
    [problem] = problems(max_body_bytes=text)
    assert problem.startswith("--max-body-bytes: ")


@pytest.mark.parametrize("text", ["1", "true", "YES", "on"])
def test_words_for_true(text: str):
    assert load({"TOPICS_PROBE_AUTH": text}).probe_auth is True


@pytest.mark.parametrize("text", ["0", "false", "No", "off"])
def test_words_for_false(text: str):
    assert load({"TOPICS_PROBE_AUTH": text}).probe_auth is False


def test_every_problem_is_reported_with_its_source(tmp_path: Path):
    found = problems(
        {"TOPICS_PORT": "70000", "TOPICS_PROBE_AUTH": "maybe", "TOPICS_SEGMENT_MAX_EVENTS": "15"},
        log_level="loud",
        max_limit="ten",
        port_file=str(tmp_path / "missing" / "port"),
    )
    assert [line.partition(":")[0] for line in found] == [
        "TOPICS_PORT",
        "--port-file",
        "--log-level",
        "TOPICS_PROBE_AUTH",
        "--max-limit",
        "TOPICS_SEGMENT_MAX_EVENTS",
    ]
    assert "70000 is above the maximum (0 to 65535)" in found[0]
    assert "15 is below the minimum (16 to 1048576)" in found[-1]
    assert "'loud' is not one of debug, info, warning, error" in found[2]


def test_bounds_themselves_are_allowed():
    for row in SETTINGS:
        for bound in (row.low, row.high):
            if bound is not None:
                assert row.read(str(bound)) == bound


def test_every_default_is_in_bounds_and_reads_back():
    for row in SETTINGS:
        if row.default not in (None, ()):
            assert row.read(row.kind.show(row.default)) == row.default


def test_non_loopback_address_needs_a_key_or_consent(tmp_path: Path):
    for host in ("0.0.0.0", "::", "192.0.2.7", "topics.example"):
        [problem] = problems({"TOPICS_HOST": host})
        assert "no API key is set" in problem
        assert load({"TOPICS_HOST": host, "TOPICS_API_KEYS": "k1"}).host == host
        assert load({"TOPICS_HOST": host, "TOPICS_ALLOW_INSECURE_NO_AUTH": "1"}).host == host
    keys = tmp_path / "keys"
    keys.write_text("# one a line\nk1:read\n")
    [rule] = load({"TOPICS_HOST": "0.0.0.0", "TOPICS_API_KEYS_FILE": str(keys)}).key_rules()
    assert rule.rights.scopes == ("read",)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost"])
def test_loopback_needs_no_key(host: str):
    assert load(host=host).is_loopback()


def test_key_setting_of_only_commas_is_refused():
    assert problems(api_keys=" , ,") == ["--api-keys: contains no key; add one, or unset it"]


def test_keys_of_setting_and_file_are_combined(tmp_path: Path):
    keys = tmp_path / "keys"
    keys.write_text("\n# spare\n k2:read:a.|b. \n")
    rules = load(api_keys="k1, k3:w", api_keys_file=str(keys)).key_rules()
    assert [(sorted(rule.rights.scopes), rule.rights.prefixes) for rule in rules] == [
        (["admin", "delete", "read", "write"], ()),
        (["write"], ()),
        (["read"], ("a.", "b.")),
    ]


def test_duplicate_key_in_setting_and_file_is_refused(tmp_path: Path):
    keys = tmp_path / "keys"
    keys.write_text("s3cret:read\n")
    [problem] = problems(api_keys="other,s3cret", api_keys_file=str(keys))
    assert "key 2 and key 3 have the same secret" in problem
    assert "s3cret" not in problem


def test_key_file_must_be_readable_and_hold_a_key(tmp_path: Path):
    empty = tmp_path / "empty"
    empty.write_text("# nothing\n")
    assert "contains no key" in problems(api_keys_file=str(empty))[0]
    assert "cannot be read" in problems(api_keys_file=str(tmp_path / "absent"))[0]
    assert "cannot be read" in problems(api_keys_file=str(tmp_path))[0]


def test_secrets_are_shown_nowhere():
    settings = load(api_keys="k1-very-secret")
    row = next(row for row in SETTINGS if row.name == "api_keys")
    assert "very-secret" not in repr(settings) + row.shown(settings.api_keys)


def test_origins_are_split_and_checked():
    assert load(cors_origins="https://a.example, http://localhost:5173").cors_origins == (
        "https://a.example",
        "http://localhost:5173",
    )
    assert load(cors_origins="*").cors_origins == ("*",)
    for text in ("a.example", "https://a.example/", "https://a.example,nonsense"):
        assert "is not an origin" in problems(cors_origins=text)[0]


@pytest.mark.parametrize(
    ("given", "meta", "record", "body"),
    [
        ({}, 16 * KIB, MIB, 64 * MIB),
        ({"body": "100000"}, 16 * KIB, 100_000, 100_000),
        ({"body": "1000"}, 1000, 1000, 1000),
        ({"record": "10000"}, 10_000, 10_000, 64 * MIB),
        ({"record": "100MiB"}, 16 * KIB, 100 * MIB, 100 * MIB),
        ({"meta": "2MiB"}, 2 * MIB, 2 * MIB, 64 * MIB),
        ({"meta": "100MiB"}, 100 * MIB, 100 * MIB, 100 * MIB),
        ({"meta": "2MiB", "body": "4MiB"}, 2 * MIB, 2 * MIB, 4 * MIB),
        ({"meta": "1k", "body": "4k"}, KIB, 4 * KIB, 4 * KIB),
    ],
)
def test_unset_size_limits_follow_the_set_ones(given: dict[str, str], meta: int, record: int, body: int):
    settings = load(**{f"max_{name}_bytes": text for name, text in given.items()})
    assert (settings.max_meta_bytes, settings.max_record_bytes, settings.max_body_bytes) == (meta, record, body)


@pytest.mark.parametrize(("small", "large"), [("meta", "record"), ("record", "body"), ("meta", "body")])
def test_contradicting_size_limits_are_refused(small: str, large: str):
    [problem] = problems(**{f"max_{small}_bytes": "2MiB", f"max_{large}_bytes": "1MiB"})
    assert problem.startswith(f"TOPICS_MAX_{small.upper()}_BYTES: 2MiB")
    assert f"TOPICS_MAX_{large.upper()}_BYTES" in problem


@pytest.mark.parametrize("row", [row for row in SETTINGS if row.low is not None], ids=lambda row: row.name)
def test_every_number_accepts_its_bounds(row: Setting, tmp_path: Path):
    others = {"data_dir": str(tmp_path / "data"), "cold_dir": str(tmp_path / "cold")} if row.group == TIERS else {}
    for value in (row.low, row.high):
        assert getattr(load(**{row.name: str(value)}, **others), row.name) == value


def test_conflicting_settings_are_refused(tmp_path: Path):
    here = str(tmp_path)
    assert "TOPICS_DATA_DIR" in problems(cold_dir=here)[0]
    assert "is the same directory" in problems(cold_dir=here, data_dir=here)[0]
    assert "TOPICS_COLD_DIR" in problems(hot_retain_segments="4", data_dir=here)[0]


def test_data_directory_that_is_a_file_is_refused(tmp_path: Path):
    file = tmp_path / "file"
    file.touch()
    assert "is a file, not a directory" in problems(data_dir=str(file))[0]
    assert load(data_dir=str(tmp_path / "new")).data_dir == tmp_path / "new"


def test_unknown_variable_gets_the_nearest_name():
    lines = unknown_variables({"TOPICS_DATADIR": "x", "TOPICS_QQ": "1", "TOPICS_PORT": "1", "HOME": "/"})
    assert lines == ["TOPICS_DATADIR is not a setting; did you mean TOPICS_DATA_DIR?", "TOPICS_QQ is not a setting"]


def test_settings_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        load().port = 1  # type: ignore[misc]


def test_configuration_page_is_up_to_date():
    assert (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8") == reference(), "run `make docs`"

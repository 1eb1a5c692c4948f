//! Texts that people and programs write: configurations, listening places, readiness, output.

use proptest::{collection::vec, prelude::*, sample::select};

use crate::{holds, parsers};

/// Words that mean something somewhere.
fn word() -> impl Strategy<Value = String> {
    let known = [
        "port",
        "port:80",
        "port:0",
        "port:65536",
        "port:+80",
        "unix",
        "unix:/run/x.sock",
        "unix:",
        "unix:x",
        "handed:port",
        "handed:unix:/x",
        "handed:handed:port",
        "connect",
        "http:/",
        "http:/healthz=204",
        "http:/a=b=200",
        "http:/a=099",
        "http:healthz",
        "http:",
        "http:/ü",
        "http:/a b",
        "http://x",
        "http:/?=200",
        "http:/#x",
        "line:up",
        "line:",
        "line:\u{0}",
        "{port}",
        "{socket}",
        "{address}",
        "10s",
        "0s",
        "1 h 5 m",
        "584542046090y",
        "-1s",
        "127.0.0.1:0",
        "[::1]:1",
        "127.0.0.1",
        "true",
        "./x",
        "..",
        "a/b",
        "",
        " ",
    ];
    prop_oneof![
        6 => select(known.map(str::to_owned).to_vec()),
        2 => "[a-z:/=?#%{}.-]{0,12}",
        1 => "(port|unix|handed|http|line|connect)[:=/]{0,2}[ -~]{0,8}",
        1 => ".{0,8}",
        1 => "unix:/[a-z]{90,110}",
        1 => "unix:\\PC{0,4}\u{0}?",
    ]
}

#[test]
fn where_a_child_listens_and_when_it_is_ready_is_read_as_it_is_written_and_can_be_used() {
    holds(4000, word(), |text| parsers::readiness(&text));
}

#[test]
fn what_a_child_prints_is_cut_into_the_same_lines_wherever_the_reads_are_cut() {
    let piece = prop_oneof![
        4 => "[a-z ]{0,20}\r?\n".prop_map(String::into_bytes),
        2 => Just(b"ready\n".to_vec()),
        1 => vec(any::<u8>(), 0..40),
        1 => (2040..2060_usize).prop_map(|n| vec![b'x'; n]),
        1 => (2040..2060_usize).prop_map(|n| [vec![b'y'; n], b"\n".to_vec()].concat()),
        1 => Just(b"\n".repeat(70)),
    ];
    let bytes = vec(piece, 0..20).prop_map(|pieces| pieces.concat());
    let cut = any::<prop::sample::Index>();
    holds(600, (bytes, cut), |(bytes, cut)| {
        let cut = cut.index(bytes.len() + 1);
        parsers::output(&bytes, cut, "ready")
    });
}

/// A value as TOML has them, or nearly.
fn value() -> impl Strategy<Value = String> {
    prop_oneof![
        8 => word().prop_map(|word| format!("{word:?}")),
        1 => vec(word(), 0..4).prop_map(|words| format!("{words:?}")),
        1 => select(vec!["1", "0", "-1", "99999999999999999999", "1.5", "nan", "true", "false", "{}", "[]", "[[]]"])
            .prop_map(str::to_owned),
        1 => "\\PC{0,6}",
    ]
}

fn command() -> impl Strategy<Value = String> {
    let known = [
        r#"command = ["true", "{port}"]"#,
        r#"command = ["true", "{socket}"]"#,
        r#"command = ["true", "{address}"]"#,
        r#"command = ["true", "--at={address}", "x"]"#,
        r#"command = ["true"]"#,
        "command = []",
        r#"command = [""]"#,
        r#"command = ["a\u0000b"]"#,
    ];
    select(known.map(str::to_owned).to_vec())
}

/// One of `right`, mostly; or another, or one of these keys with any value.
fn line(right: &[&str], keys: &[&'static str]) -> impl Strategy<Value = String> + use<> {
    let other = [
        "[backend.\".h\"]",
        "[backend.\"ü\"]",
        "[backend.\"\"]",
        "[other]",
        "comand = 1",
        "= 1",
        r#"env = { "" = "b" }"#,
        r#"env = { "A=B" = "c" }"#,
        r#"env = { A = "\u0000" }"#,
        r#"ready_within = "0s""#,
        r#"idle_after = "0s""#,
    ];
    let right = right.iter().map(|line| (*line).to_owned());
    prop_oneof![
        12 => select(right.collect::<Vec<_>>()),
        1 => select(other.map(str::to_owned).to_vec()),
        2 => (select(keys.to_vec()), value()).prop_map(|(key, value)| format!("{key} = {value}")),
    ]
}

fn of_the_host() -> impl Strategy<Value = String> {
    let right = [
        r#"listen = "127.0.0.1:0""#,
        r#"wait = "3s""#,
        r#"drain = "1m""#,
        r#"upload_pause = "20ms""#,
        "# nothing",
    ];
    line(
        &right,
        &["listen", "limit", "wait", "drain", "upload_pause"],
    )
}

fn of_a_backend() -> impl Strategy<Value = String> {
    let right = [
        r#"env = { A = "b" }"#,
        r#"cwd = "x""#,
        r#"listen = "port""#,
        r#"listen = "unix""#,
        r#"ready = "http:/""#,
        r#"ready = "line:up""#,
        r#"ready_within = "10s""#,
        r#"grace = "0s""#,
        r#"idle_after = "1h""#,
        "pinned = true",
        "",
    ];
    let keys = [
        "env",
        "cwd",
        "listen",
        "ready",
        "ready_within",
        "grace",
        "idle_after",
        "pinned",
    ];
    line(&right, &keys)
}

#[test]
fn a_configuration_can_be_run_or_it_is_told_what_is_wrong_and_where() {
    let backend = ("[a-z]{1,3}(\\.x)?", command(), vec(of_a_backend(), 0..4));
    let backend = backend.prop_map(|(name, command, more)| {
        let more = more.join("\n");
        format!("[backend.{name:?}]\n{command}\n{more}")
    });
    let whole = (vec(of_the_host(), 0..2), vec(backend, 0..3)).prop_map(|(top, backends)| {
        let none = if backends.is_empty() { "[backend]" } else { "" };
        format!(
            "limit = 1\n{}\n{none}{}\n",
            top.join("\n"),
            backends.join("\n")
        )
    });
    let any = prop_oneof![of_the_host(), of_a_backend(), command()];
    let any = vec(any, 0..12).prop_map(|lines| lines.join("\n"));
    let text = prop_oneof![6 => whole, 2 => any, 1 => "\\PC{0,60}"];
    holds(4000, text, |text| parsers::config(&text));
}

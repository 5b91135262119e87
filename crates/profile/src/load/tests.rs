use proptest::prelude::*;
use vitriol_units::Bytes;

use super::*;
use crate::{Isa, LogFormat, ValueError};

fn parse(text: &str) -> Result<Profile, ProfileError> {
    Profile::parse(Path::new("p.toml"), text, &Overrides::new())
}

fn refusal(text: &str) -> String {
    said(&parse(text).expect_err("the profile must be refused"))
}

/// An error as people get to see it: with its sources.
fn said(error: &ProfileError) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(inner) = source {
        text += &format!(": {inner}");
        source = inner.source();
    }
    text
}

#[test]
fn an_empty_profile_is_the_default() {
    assert_eq!(parse("").unwrap(), Profile::default());
    assert_eq!(
        Profile::load(None, &Overrides::new()).unwrap(),
        Profile::default()
    );
    let main = &Profile::default().engines["main"];
    assert_eq!((main.kv_bytes_max, main.sequences_max), (Bytes::gib(1), 16));
}

#[test]
fn values_are_read_with_their_types() {
    let profile = parse(
        "[house]\nlisten = 'localhost:0'\nlog_format = 'json'\n\
         [engine.main]\nkv_bytes_max = '512 MiB'\nisa = 'avx2'\nshare_prefixes = false\n\
         threads = 0x2\n[engine.small-2]\n",
    )
    .unwrap();
    assert_eq!(profile.house.listen.to_string(), "127.0.0.1:0");
    assert_eq!(profile.house.log_format, LogFormat::Json);
    let main = profile.engine("main").unwrap();
    assert_eq!(
        (main.kv_bytes_max, main.isa, main.threads),
        (Bytes::mib(512), Isa::Avx2, 2)
    );
    assert!(!main.share_prefixes);
    assert_eq!(profile.engine("small-2"), Some(&Engine::default()));
    assert_eq!(profile.engine("large"), None);
}

#[test]
fn a_body_fits_into_half_of_the_engines_largest_message() {
    let of = |bytes: &str| format!("[demiurge]\nbody_bytes_max = '{bytes}'\n");
    parse(&of("128 MiB")).unwrap();
    assert!(refusal(&of("129 MiB")).contains("134217728"));
}

#[test]
fn names_of_processes_are_a_list_without_gaps() {
    let of = |names: &str| format!("[shield]\nextra = '{names}'\n");
    let names = |text: &str| -> Vec<String> {
        let profile = parse(&of(text)).unwrap();
        profile.shield.extra.iter().map(str::to_owned).collect()
    };
    assert_eq!(
        names(" postgres,tmux: server "),
        ["postgres", "tmux: server"]
    );
    assert_eq!(names(" "), [""; 0]);
    for wrong in ["a,,b", "a,", "/usr/bin/java"] {
        assert!(refusal(&of(wrong)).contains("not paths"), "{wrong}");
    }
    assert!(refusal("[shield]\nextra = 3\n").contains("names such as"));
}

#[test]
fn unknown_names_are_refused_with_the_nearest_one() {
    assert_eq!(
        refusal("[engine.main]\n\nthread = 4\n"),
        "profile p.toml, line 3: unknown setting 'engine.main.thread'; did you mean \
         'engine.main.threads'?"
    );
    assert_eq!(
        refusal("[demiurg]\n"),
        "profile p.toml, line 1: unknown table 'demiurg'; did you mean 'demiurge'?"
    );
    // The right name in the wrong place.
    assert!(refusal("[house]\nrequests_max = 4\n").contains("'demiurge.requests_max'"));
    assert!(refusal("[engine]\nthreads = 4\n").contains("'engine.main.threads'"));
}

#[test]
fn wrong_values_name_line_key_and_remedy() {
    assert_eq!(
        refusal("[engine.main]\nsequences_max = 0\n"),
        "profile p.toml, line 2: engine.main.sequences_max: 0 is outside 1 to 1024"
    );
    assert!(refusal("[engine.main]\nthreads = '4'\n").contains("expected a whole number"));
    assert!(refusal("[engine.main]\nthreads = -1\n").contains("-1 is outside 0"));
    assert!(
        refusal("[engine.main]\nisa = 'neon'\n")
            .contains("auto, scalar, sse41, avx2, avxvnni, avx512")
    );
    assert!(refusal("[house]\nlisten = 'nowhere'\n").contains("no address"));
    assert!(refusal("house = 3\n").contains("write [house]"));
    assert!(refusal("[engine.main]\nkv_bytes_max = '1 GB ram'\n").contains("unknown unit"));
    assert!(refusal("[engine.Main]\n").contains("must be 1 to 32 of a-z"));
    assert!(refusal("[house\n").starts_with("profile p.toml, line 1: "));
    assert!(refusal("[house]\nlisten = 1979-05-27\n").contains("datetime"));
    assert!(refusal("[engine.main]\nthreads = 99999999999999999999\n").contains("64 bits"));
}

#[test]
fn a_value_error_says_its_text_once() {
    let flags = Overrides::new().set("house.listen", Some("nowhere"), "--listen");
    let flag = Profile::load(None, &flags).expect_err("must be refused");
    assert_eq!(
        said(&flag),
        "--listen: 'nowhere' is no address; write for instance \"127.0.0.1:8265\""
    );
    for text in [
        refusal("[house]\nlisten = 'nowhere'\n"),
        refusal("[engine.main]\nkv_bytes_max = '1 GB ram'\n"),
        refusal("[engine.main]\nisa = 'neon'\n"),
    ] {
        let parts: Vec<&str> = text.split(": ").collect();
        let mut distinct = parts.clone();
        distinct.dedup();
        assert_eq!(parts, distinct, "{text}");
    }
}

#[test]
fn tenants_have_tables_of_their_own() {
    let text = "[engine.main]\nthreads = 3\n[engine.main.tenants.acme]\nkv_share = 0.25\n\
                [engine.main.tenants.B_2]\nkv_share = 0.7\n";
    let profile = parse(text).unwrap();
    let share = |tenant: &str| profile.tenants["main"][tenant].kv_share.as_f64();
    assert_eq!((share("acme"), share("B_2")), (0.25, 0.7));
    let key = "engine.main.tenants.acme.kv_share";
    assert_eq!(profile.origin(key).to_string(), "p.toml:4");
    for again in [profile.to_toml(false), profile.to_document("Saved.")] {
        assert_eq!(profile.changes_to(&parse(&again).unwrap()), []);
    }
    let entries = profile.entries();
    let entry = entries.iter().find(|entry| entry.key == key).unwrap();
    assert!(matches!(entry.plain(), Plain::Share(share) if share.as_f64() == 0.25));

    assert_eq!(
        refusal("[engine.main.tenants.acme]\nkv_shares = 0.25\n"),
        "profile p.toml, line 2: unknown setting 'engine.main.tenants.acme.kv_shares'; did you mean \
         'engine.main.tenants.acme.kv_share'?"
    );
    assert!(refusal("[engine.main.tenants.a]\nkv_share = 1.5\n").contains("a number from 0 to 1"));
    assert!(refusal("[engine.main.tenants.a]\nkv_share = nan\n").contains("a number from 0 to 1"));
    assert!(refusal("[engine.main.tenants.'a.b']\n").contains("1 to 64"));
    assert!(refusal("[engine.main]\ntenants = 3\n").contains("write [engine.main.tenants]"));
    let too_much = "[engine.main.tenants]\na.kv_share = 0.5\nb.kv_share = 0.51\n";
    assert_eq!(
        refusal(too_much),
        "engine.main.tenants: the shares of all tenants are more than 1 together; lower some of them"
    );
    parse("[engine.main.tenants]\na.kv_share = 0.7\nb.kv_share = 0.2\nc.kv_share = 0.1\n").unwrap();
}

#[test]
fn a_flag_wins_over_the_file_and_the_file_over_the_default() {
    let flags = Overrides::new()
        .set("house.listen", Some("127.0.0.1:9"), "--listen")
        .set("engine.main.threads", None::<u32>, "--threads");
    let text = "[house]\nlisten = '127.0.0.1:8'\n[engine.main]\nthreads = 3\n";
    let profile = Profile::parse(Path::new("p.toml"), text, &flags).unwrap();
    assert_eq!(profile.house.listen.port(), 9);
    assert_eq!(profile.origin("house.listen").to_string(), "flag --listen");
    assert_eq!(
        profile.origin("engine.main.threads").to_string(),
        "p.toml:4"
    );
    assert_eq!(profile.origin("engine.main.isa"), &Origin::Default);
}

#[test]
fn a_wrong_flag_is_named() {
    let load = |key, value, flag| {
        let flags = Overrides::new().set(key, Some(value), flag);
        Profile::load(None, &flags).expect_err("must be refused")
    };
    assert_eq!(
        said(&load("engine.main.threads", "many", "--threads")),
        "--threads: expected a whole number, found 'many'"
    );
    let error = load("engine.big.threads", "1", "--set");
    assert!(
        matches!(error, ProfileError::UnknownOverride { .. }),
        "{error}"
    );
    assert!(error.to_string().contains("engine.main.threads"), "{error}");
    let error = load("threads", "1", "--set").to_string();
    assert!(error.contains("engine.main.threads"), "{error}");
}

#[test]
fn a_file_that_is_not_there_is_named() {
    let error = Profile::load(Some(Path::new("/nonexistent/p.toml")), &Overrides::new());
    assert!(matches!(error, Err(ProfileError::Read { .. })));
}

#[test]
fn a_device_is_no_profile() {
    let error = Profile::load(Some(Path::new("/dev/zero")), &Overrides::new());
    assert!(matches!(error, Err(ProfileError::NotAFile { .. })));
}

#[test]
fn plain_values_are_what_the_settings_are() {
    let text = "[engine.main]\nmodel = '/x/\"y\"\\z.gguf'\nthreads = 3\n";
    let profile = parse(text).unwrap();
    let plain = |key: &str| {
        let entries = profile.entries();
        let entry = entries.iter().find(|entry| entry.key == key);
        entry.map(Entry::plain).unwrap()
    };
    let text = |text: &str| Plain::Text(text.to_owned());
    assert_eq!(plain("engine.main.model"), text("/x/\"y\"\\z.gguf"));
    assert_eq!(plain("engine.main.threads"), Plain::Integer(3));
    assert_eq!(plain("engine.main.share_prefixes"), Plain::Boolean(true));
    assert_eq!(plain("engine.main.kv_bytes_max"), text("1 GiB"));
    assert_eq!(plain("house.listen"), text("127.0.0.1:8265"));
}

#[test]
fn what_is_shown_reads_back() {
    let text = "[engine.main]\nmodel = '''/x/\"y\"\\z.gguf'''\n[engine.b]\nthreads = 2\n";
    let profile = parse(text).unwrap();
    for origins in [false, true] {
        let again = parse(&profile.to_toml(origins)).unwrap();
        assert_eq!(again.engines, profile.engines);
        assert_eq!(
            (&again.house, &again.demiurge),
            (&profile.house, &profile.demiurge)
        );
    }
    assert!(profile.to_toml(true).contains("# p.toml:4\n"));
}

proptest! {
    #[test]
    fn no_text_panics_and_what_is_accepted_reads_back(
        table in prop_oneof![Just("house"), Just("engine.main"), Just("demiurge"), Just("shield"),
            Just("kvtier"), Just("enginee")],
        field in prop_oneof![
            Just("threads"), Just("listen"), Just("kv_bytes_max"), Just("model"), Just("drain_ms"),
            Just("isa"), Just("body_bytes_max"), Just("extra"), Just("mirror_dir"), Just("nothing"),
        ],
        value in prop_oneof![
            any::<i64>().prop_map(|n| n.to_string()),
            "\"[ -!#-\\[\\]-~]{0,12}\"",
            (0u32..5000).prop_map(|n| format!("'{n} MiB'")),
            Just("true".to_owned()), Just("[1]".to_owned()), Just("1.5".to_owned()),
        ],
    ) {
        if let Ok(profile) = parse(&format!("[{table}]\n{field} = {value}\n")) {
            let key = format!("{table}.{field}");
            let entry = profile.entries().into_iter().find(|e| e.key == key).unwrap();
            let again = parse(&format!("[{table}]\n{field} = {}\n", entry.value)).unwrap();
            let same = again.entries().into_iter().find(|e| e.key == key).unwrap();
            prop_assert_eq!(same.value, entry.value);
        }
    }

    #[test]
    fn flags_of_any_text_never_panic(value in "\\PC{0,16}") {
        for entry in Profile::default().entries() {
            let flags = Overrides::new().set(&entry.key, Some(&value), "--x");
            if let Err(error) = Profile::load(None, &flags) {
                prop_assert!(matches!(error, ProfileError::Flag { .. }), "{}", error);
            }
        }
    }
}

#[test]
fn value_errors_say_what_was_found() {
    let error = ValueError::Type {
        expected: "true or false",
        found: "3".into(),
    };
    assert_eq!(error.to_string(), "expected true or false, found 3");
}

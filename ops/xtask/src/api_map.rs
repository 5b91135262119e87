//! `proto/api-map.toml` against the proto files and the sources: who serves, who calls, no cycles.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::{
    rust_source::{code_only, lines_with_word, rust_files},
    workspace::Workspace,
};

/// The file's content.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ApiMap {
    #[serde(rename = "package")]
    pub packages: Vec<Api>,
}

/// One proto package and the processes at its two ends.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Api {
    /// Proto package, e.g. `vitriol.engine.v1`.
    pub name: String,
    pub served_by: Vec<String>,
    pub called_by: Vec<String>,
    /// Anyone may call it; left out of the cycle check.
    #[serde(default)]
    pub open: bool,
}

/// Everything in which map, proto files and sources disagree, one line each.
pub fn check(workspace: &Workspace) -> Result<Vec<String>> {
    let path = workspace.root.join("proto/api-map.toml");
    let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    let map: ApiMap = toml::from_str(&text).with_context(|| format!("parse {}", path.display()))?;
    let services = services(&workspace.root.join("proto/vitriol"))?;
    let calls = calls(workspace, &services)?;
    let mut broken = disagreements(&map, &services, &calls);
    broken.extend(cycle(&map));
    Ok(broken)
}

/// Service names by proto package, read from the `.proto` files below `dir`.
fn services(dir: &Path) -> Result<BTreeMap<String, Vec<String>>> {
    let mut found = BTreeMap::new();
    let mut open = vec![dir.to_owned()];
    while let Some(at) = open.pop() {
        for entry in fs::read_dir(&at).with_context(|| format!("list {}", at.display()))? {
            let path = entry?.path();
            if path.is_dir() {
                open.push(path);
            } else if path.extension().is_some_and(|e| e == "proto") {
                let text = fs::read_to_string(&path)
                    .with_context(|| format!("read {}", path.display()))?;
                let (package, services) = declared(&text);
                found
                    .entry(package)
                    .or_insert_with(Vec::new)
                    .extend(services);
            }
        }
    }
    Ok(found)
}

/// Package and services that one proto file declares.
fn declared(proto: &str) -> (String, Vec<String>) {
    let words_after = |keyword: &str| -> Vec<String> {
        proto
            .lines()
            .filter_map(|line| line.trim().strip_prefix(keyword)?.strip_prefix(' '))
            .map(|rest| rest.trim_end_matches(['{', ';', ' ']).trim().to_owned())
            .collect()
    };
    (
        words_after("package").pop().unwrap_or_default(),
        words_after("service"),
    )
}

/// (process, proto package) pairs where a process's `src/` names the client of a service.
fn calls(
    workspace: &Workspace,
    services: &BTreeMap<String, Vec<String>>,
) -> Result<BTreeSet<(String, String)>> {
    let mut found = BTreeSet::new();
    for (_, package) in workspace.ours() {
        let Some(process) = process_of(&workspace.root, &package.dir, &package.name) else {
            continue;
        };
        for file in rust_files(&package.dir.join("src"))? {
            let source = fs::read_to_string(&file)?;
            let code = code_only(&source);
            for (api, names) in services {
                let used = names
                    .iter()
                    .any(|name| !lines_with_word(&code, &format!("{name}Client")).is_empty());
                if used {
                    found.insert((process.clone(), api.clone()));
                }
            }
        }
    }
    Ok(found)
}

/// The process a crate builds: the daemons, and the CLI.
fn process_of(root: &Path, dir: &Path, name: &str) -> Option<String> {
    let daemon = dir.starts_with(root.join("daemons"));
    (daemon || name == "vitriol").then(|| name.trim_start_matches("vitriol-").to_owned())
}

fn disagreements(
    map: &ApiMap,
    services: &BTreeMap<String, Vec<String>>,
    calls: &BTreeSet<(String, String)>,
) -> Vec<String> {
    let mut broken = Vec::new();
    let mapped: BTreeSet<&String> = map.packages.iter().map(|api| &api.name).collect();
    for package in services.keys().filter(|p| !mapped.contains(p)) {
        broken.push(format!("api-map.toml: {package} is not in it"));
    }
    for api in &map.packages {
        if !services.contains_key(&api.name) {
            broken.push(format!(
                "api-map.toml: {}: no proto file declares it",
                api.name
            ));
        }
        for caller in &api.called_by {
            if !calls.contains(&(caller.clone(), api.name.clone())) {
                broken.push(format!("api-map.toml: {caller} does not call {}", api.name));
            }
        }
    }
    for (process, package) in calls {
        let allowed = map
            .packages
            .iter()
            .any(|api| api.name == *package && api.called_by.contains(process));
        if !allowed {
            broken.push(format!(
                "{process} calls {package}: no such edge in api-map.toml"
            ));
        }
    }
    broken
}

/// Names a process that can reach itself over edges that wait for an answer, if there is one.
fn cycle(map: &ApiMap) -> Option<String> {
    let mut edges: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for api in map.packages.iter().filter(|api| !api.open) {
        for caller in &api.called_by {
            edges
                .entry(caller)
                .or_default()
                .extend(api.served_by.iter().map(String::as_str));
        }
    }
    edges.keys().find_map(|&start| {
        let mut seen = BTreeSet::new();
        let mut open: Vec<&str> = edges[start].iter().copied().collect();
        while let Some(at) = open.pop() {
            if at == start {
                return Some(format!(
                    "api-map.toml: {start} waits for itself in a circle"
                ));
            }
            if seen.insert(at) {
                open.extend(edges.get(at).into_iter().flatten());
            }
        }
        None
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(text: &str) -> ApiMap {
        toml::from_str(text).unwrap()
    }

    const ONE_EDGE: &str = "[[package]]\nname = 'vitriol.engine.v1'\nserved_by = ['engine']\n\
                            called_by = ['demiurge']\n";

    #[test]
    fn a_proto_file_names_its_package_and_services() {
        let text = "// service Old\nsyntax = \"proto3\";\npackage vitriol.engine.v1;\n\nservice Engine {\n}\n";
        assert_eq!(
            declared(text),
            ("vitriol.engine.v1".to_owned(), vec!["Engine".to_owned()])
        );
    }

    #[test]
    fn map_protos_and_calls_must_agree() {
        let services = BTreeMap::from([("vitriol.engine.v1".to_owned(), vec!["Engine".into()])]);
        let edge = |process: &str| (process.to_owned(), "vitriol.engine.v1".to_owned());
        let used = BTreeSet::from([edge("demiurge")]);
        assert_eq!(
            disagreements(&map(ONE_EDGE), &services, &used),
            Vec::<String>::new()
        );

        assert_eq!(
            disagreements(&map(ONE_EDGE), &services, &BTreeSet::new()).len(),
            1
        );
        let other = BTreeSet::from([edge("demiurge"), edge("vitriol")]);
        assert_eq!(disagreements(&map(ONE_EDGE), &services, &other).len(), 1);
        assert_eq!(
            disagreements(&map("package = []"), &services, &BTreeSet::new()).len(),
            1
        );
        assert_eq!(
            disagreements(&map(ONE_EDGE), &BTreeMap::new(), &used).len(),
            1
        );
    }

    #[test]
    fn circles_of_waiting_are_found_and_open_packages_are_not_waiting() {
        assert_eq!(cycle(&map(ONE_EDGE)), None);
        let back = "[[package]]\nname = 'vitriol.demiurge.v1'\nserved_by = ['demiurge']\n\
                    called_by = ['engine']\n";
        assert!(cycle(&map(&format!("{ONE_EDGE}{back}"))).is_some());
        assert_eq!(cycle(&map(&format!("{ONE_EDGE}{back}open = true\n"))), None);
    }
}

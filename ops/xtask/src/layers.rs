//! The layer rules of the house, checked from the dependency graph and the sources.
//!
//! L0 units shm kernels-core → L1 sysfs measure gguf tokens kernels-cpu → L2 proto profile ipc chassis →
//! L3 engine demiurge kvtier oom-shield persist, the CLI → L4 xtask, tests, benches. A crate uses lower layers, and in its own layer
//! only crates that stand to its left; in L3 none uses another.

use std::path::Path;

use anyhow::{Context, Result};

use crate::{
    api_map,
    rust_source::{code_only, lines_with_word, rust_files},
    workspace::{Need, Workspace},
};

const LAYERS: [&[&str]; 5] = [
    &["vitriol-units", "vitriol-shm", "vitriol-kernels-core"],
    &[
        "vitriol-sysfs",
        "vitriol-measure",
        "vitriol-gguf",
        "vitriol-tokens",
        "vitriol-kernels-cpu",
    ],
    &[
        "vitriol-proto",
        "vitriol-profile",
        "vitriol-ipc",
        "vitriol-chassis",
    ],
    &[
        "vitriol-engine",
        "vitriol-demiurge",
        "vitriol-kvtier",
        "vitriol-oom-shield",
        "vitriol-persist",
        "vitriol",
    ],
    &["xtask", "vitriol-tests", "vitriol-bench-kernels"],
];

/// Layer whose crates are processes: none uses another.
const PROCESSES: usize = 3;

/// First layer in which an async runtime and gRPC may appear.
const ASYNC_FROM: usize = 2;

/// Needed by tests only, from every layer, so it stands in none and needs none of the house.
const TESTKIT: &str = "vitriol-testkit";

/// The only crate that computes, and those that may link it.
const KERNELS: &str = "vitriol-kernels-cpu";
const KERNEL_USERS: [&str; 5] = [
    KERNELS,
    "vitriol-engine",
    "vitriol-tests",
    "vitriol-bench-kernels",
    "xtask",
];

/// Directories whose sources may hold `unsafe`.
const UNSAFE_ALLOWED: [&str; 3] = ["crates/shm", "crates/ipc", "kernels/cpu"];

/// Everything that breaks a rule, one line each; empty when the house stands.
pub fn check(root: &Path) -> Result<Vec<String>> {
    let workspace = Workspace::read(root)?;
    let mut broken = layer_order(&workspace);
    broken.extend(testkit_is_for_tests(&workspace));
    broken.extend(async_only_above(&workspace));
    broken.extend(kernels_linked_by_engine_only(&workspace));
    broken.extend(unsafe_code_elsewhere(root)?);
    broken.extend(api_map::check(&workspace)?);
    Ok(broken)
}

/// Layer and place within it.
fn place(name: &str) -> Option<(usize, usize)> {
    LAYERS.iter().enumerate().find_map(|(layer, crates)| {
        crates
            .iter()
            .position(|c| *c == name)
            .map(|place| (layer, place))
    })
}

fn layer_order(workspace: &Workspace) -> Vec<String> {
    let mut broken = Vec::new();
    for (id, package) in workspace.ours().filter(|(_, p)| p.name != TESTKIT) {
        let Some(from) = place(&package.name) else {
            broken.push(format!(
                "{}: stands in no layer; name it in LAYERS",
                package.name
            ));
            continue;
        };
        for (needed, _) in workspace.own_needs(id).filter(|(name, _)| *name != TESTKIT) {
            let Some(to) = place(needed) else { continue };
            let among_processes = from.0 == PROCESSES && to.0 == PROCESSES;
            if to >= from || among_processes {
                broken.push(format!(
                    "{} (L{}) depends on {needed} (L{}): {}",
                    package.name,
                    from.0,
                    to.0,
                    if among_processes {
                        "no process depends on another's crate"
                    } else {
                        "only lower layers, and crates to the left in its own"
                    }
                ));
            }
        }
    }
    broken
}

fn testkit_is_for_tests(workspace: &Workspace) -> Vec<String> {
    let mut broken = Vec::new();
    for (id, package) in workspace.ours() {
        for (needed, need) in workspace.own_needs(id) {
            if package.name == TESTKIT {
                broken.push(format!(
                    "{TESTKIT} depends on {needed}: every layer tests with it"
                ));
            }
            let from_tests = package.name == "vitriol-tests";
            if needed == TESTKIT && need != Need::Dev && !from_tests {
                broken.push(format!(
                    "{} depends on {TESTKIT} outside its tests",
                    package.name
                ));
            }
        }
    }
    broken
}

fn async_only_above(workspace: &Workspace) -> Vec<String> {
    let is_async = |name: &str| {
        ["tokio", "tonic"].iter().any(|family| {
            name.strip_prefix(family)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
        })
    };
    let mut broken = Vec::new();
    for (id, package) in workspace.ours() {
        if place(&package.name).is_some_and(|(layer, _)| layer < ASYNC_FROM)
            && let Some(found) = workspace.linked_into(id).into_iter().find(|n| is_async(n))
        {
            broken.push(format!(
                "{} links {found}: L{ASYNC_FROM} and above only",
                package.name
            ));
        }
    }
    broken
}

fn kernels_linked_by_engine_only(workspace: &Workspace) -> Vec<String> {
    workspace
        .ours()
        .filter(|(_, p)| !KERNEL_USERS.contains(&p.name.as_str()))
        .filter(|(id, _)| workspace.linked_into(id).contains(KERNELS))
        .map(|(_, p)| format!("{} links {KERNELS}: only the engine computes", p.name))
        .collect()
}

fn unsafe_code_elsewhere(root: &Path) -> Result<Vec<String>> {
    let mut broken = Vec::new();
    for file in rust_files(root)? {
        let shown = file.strip_prefix(root).unwrap_or(&file);
        if UNSAFE_ALLOWED.iter().any(|dir| shown.starts_with(dir)) {
            continue;
        }
        let source =
            std::fs::read_to_string(&file).with_context(|| format!("read {}", shown.display()))?;
        for line in lines_with_word(&code_only(&source), "unsafe") {
            broken.push(format!(
                "{}:{line}: unsafe outside {}",
                shown.display(),
                UNSAFE_ALLOWED.join(", ")
            ));
        }
    }
    Ok(broken)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::Package;

    /// A workspace of our crates named here, plus foreign ones that appear only as needs.
    fn workspace(edges: &[(&str, &str, Need)]) -> Workspace {
        let mut workspace = Workspace::default();
        for (from, to, need) in edges {
            for name in [from, to] {
                let ours = place(name).is_some() || name.starts_with("vitriol");
                workspace
                    .packages
                    .entry((*name).to_owned())
                    .or_insert_with(|| Package {
                        name: (*name).to_owned(),
                        ours,
                        dir: Default::default(),
                        needs: Vec::new(),
                    });
            }
            let package = workspace.packages.get_mut(*from).unwrap();
            package.needs.push(((*to).to_owned(), *need));
        }
        workspace
    }

    #[test]
    fn dependencies_point_down_or_left() {
        let good = [
            ("vitriol-gguf", "vitriol-shm", Need::Normal),
            ("vitriol-tokens", "vitriol-gguf", Need::Normal),
            ("vitriol-tests", "vitriol-engine", Need::Normal),
            ("vitriol-gguf", "vitriol-testkit", Need::Dev),
        ];
        assert_eq!(layer_order(&workspace(&good)), Vec::<String>::new());
        for bad in [
            ("vitriol-gguf", "vitriol-tokens", Need::Normal),
            ("vitriol-shm", "vitriol-profile", Need::Dev),
            ("vitriol-engine", "vitriol-demiurge", Need::Dev),
            ("vitriol", "vitriol-engine", Need::Build),
            ("vitriol-novelty", "vitriol-units", Need::Normal),
        ] {
            assert_eq!(layer_order(&workspace(&[bad])).len(), 1, "{bad:?}");
        }
    }

    #[test]
    fn the_testkit_stays_out_of_what_ships() {
        let dev = workspace(&[("vitriol-engine", TESTKIT, Need::Dev)]);
        assert_eq!(testkit_is_for_tests(&dev), Vec::<String>::new());
        let shipped = workspace(&[("vitriol-engine", TESTKIT, Need::Normal)]);
        assert_eq!(testkit_is_for_tests(&shipped).len(), 1);
        let upward = workspace(&[(TESTKIT, "vitriol-profile", Need::Normal)]);
        assert_eq!(testkit_is_for_tests(&upward).len(), 1);
    }

    #[test]
    fn async_is_found_through_other_crates() {
        let hidden = workspace(&[
            ("vitriol-gguf", "some-crate", Need::Normal),
            ("some-crate", "tokio-util", Need::Normal),
        ]);
        assert_eq!(async_only_above(&hidden).len(), 1);
        let tested = workspace(&[("vitriol-gguf", "tokio", Need::Dev)]);
        assert_eq!(async_only_above(&tested), Vec::<String>::new());
        let above = workspace(&[("vitriol-ipc", "tonic", Need::Normal)]);
        assert_eq!(async_only_above(&above), Vec::<String>::new());
    }

    #[test]
    fn only_the_engine_links_kernels() {
        let edges = [
            ("vitriol-engine", KERNELS, Need::Normal),
            ("vitriol-tests", "vitriol-engine", Need::Normal),
        ];
        assert_eq!(
            kernels_linked_by_engine_only(&workspace(&edges)),
            Vec::<String>::new()
        );
        let demiurge = workspace(&[("vitriol-demiurge", KERNELS, Need::Normal)]);
        assert_eq!(kernels_linked_by_engine_only(&demiurge).len(), 1);
    }
}

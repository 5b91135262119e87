//! The dependency graph that `cargo metadata` reports, reduced to what the layer rules need.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

/// Why one package needs another. Cargo may list several for one edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Need {
    Normal,
    Build,
    Dev,
}

/// One package: ours when it lies in the workspace.
#[derive(Clone, Debug)]
pub struct Package {
    pub name: String,
    pub ours: bool,
    /// Directory of its Cargo.toml.
    pub dir: PathBuf,
    /// Packages it needs (by id), and why.
    pub needs: Vec<(String, Need)>,
}

/// All packages of the resolved graph by cargo's id.
#[derive(Clone, Debug, Default)]
pub struct Workspace {
    pub root: PathBuf,
    pub packages: BTreeMap<String, Package>,
}

impl Workspace {
    /// Reads the graph of the workspace at `root` from `cargo metadata`.
    pub fn read(root: &Path) -> Result<Workspace> {
        let output = Command::new("cargo")
            .args(["metadata", "--format-version", "1", "--filter-platform"])
            .arg("x86_64-unknown-linux-gnu")
            .current_dir(root)
            .output()
            .context("run cargo metadata")?;
        if !output.status.success() {
            bail!(
                "cargo metadata: {}",
                String::from_utf8_lossy(&output.stderr).trim()
            );
        }
        let metadata = serde_json::from_slice(&output.stdout).context("parse cargo metadata")?;
        Ok(Workspace::from_metadata(root, metadata))
    }

    fn from_metadata(root: &Path, metadata: Metadata) -> Workspace {
        let members: BTreeSet<String> = metadata.workspace_members.into_iter().collect();
        let mut packages: BTreeMap<String, Package> = metadata
            .packages
            .into_iter()
            .map(|p| {
                let dir = p.manifest_path.parent().unwrap_or(root).to_owned();
                let ours = members.contains(&p.id);
                (
                    p.id,
                    Package {
                        name: p.name,
                        ours,
                        dir,
                        needs: Vec::new(),
                    },
                )
            })
            .collect();
        for node in metadata.resolve.nodes {
            let Some(package) = packages.get_mut(&node.id) else {
                continue;
            };
            for dep in node.deps {
                for kind in dep.dep_kinds {
                    let need = match kind.kind.as_deref() {
                        Some("dev") => Need::Dev,
                        Some("build") => Need::Build,
                        _ => Need::Normal,
                    };
                    package.needs.push((dep.pkg.clone(), need));
                }
            }
        }
        Workspace {
            root: root.to_owned(),
            packages,
        }
    }

    /// The workspace's own packages.
    pub fn ours(&self) -> impl Iterator<Item = (&String, &Package)> {
        self.packages.iter().filter(|(_, p)| p.ours)
    }

    /// What `id` needs of the workspace's own packages, by name.
    pub fn own_needs<'a>(&'a self, id: &str) -> impl Iterator<Item = (&'a str, Need)> {
        let needs = self
            .packages
            .get(id)
            .map_or(&[][..], |p| p.needs.as_slice());
        needs.iter().filter_map(|(to, need)| {
            let package = self.packages.get(to)?;
            package.ours.then_some((package.name.as_str(), *need))
        })
    }

    /// Names of everything that ends up in a binary of `id`: normal dependencies, followed through.
    pub fn linked_into(&self, id: &str) -> BTreeSet<&str> {
        let mut seen = BTreeSet::new();
        let mut open = vec![id.to_owned()];
        while let Some(at) = open.pop() {
            let Some(package) = self.packages.get(&at) else {
                continue;
            };
            for (to, need) in &package.needs {
                if *need == Need::Normal && seen.insert(to.clone()) {
                    open.push(to.clone());
                }
            }
        }
        seen.iter()
            .filter_map(|id| self.packages.get(id))
            .map(|p| p.name.as_str())
            .collect()
    }
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<MetadataPackage>,
    workspace_members: Vec<String>,
    resolve: Resolve,
}

#[derive(Deserialize)]
struct MetadataPackage {
    id: String,
    name: String,
    manifest_path: PathBuf,
}

#[derive(Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Deserialize)]
struct Node {
    id: String,
    deps: Vec<NodeDependency>,
}

#[derive(Deserialize)]
struct NodeDependency {
    pkg: String,
    dep_kinds: Vec<NodeDependencyKind>,
}

#[derive(Deserialize)]
struct NodeDependencyKind {
    kind: Option<String>,
}

//! `vitriol install` and `vitriol uninstall`: the house as units of systemd.
//!
//! What goes where is `layout`'s to decide; `tree` writes and removes, saying each thing; `manager`
//! talks to systemd. Every step finds its own work done and leaves it, so a run that failed is mended
//! by the next one.

mod layout;
mod manager;
mod tree;

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::Context;
use vitriol_chassis::{Environment, Exit, Failure, OrExit};
use vitriol_gguf::Gguf;
use vitriol_profile::{ModelReference, Overrides, Profile};

use self::{
    layout::{Layout, Scope},
    manager::Manager,
    tree::{Tree, print_line},
};
use crate::cli::{InstallArgs, UninstallArgs};

/// The binaries of the house.
const BINARIES: [&str; 6] = [
    "vitriol",
    "vitriol-engine",
    "vitriol-demiurge",
    "vitriol-oom-shield",
    "vitriol-persist",
    "vitriol-kvtier",
];

/// Where polkit has what it comes with.
const POLKIT: &str = "/usr/share/polkit-1";

/// Installs the house.
///
/// Errors: not root and not --user, no systemd, a binary or the model missing, a model that is none
/// (69); a file or a command of systemd that fails (69), named with the way to go on; with --now no
/// model to run, or an engine that does not run then (69).
pub fn install(args: &InstallArgs, environment: &Environment) -> Result<(), Failure> {
    let layout = layout(args.user, args.root.as_deref(), environment)?;
    let manager = manager(&layout, args.dry_run)?;
    let binaries = find_binaries(args.bin_dir.as_deref())?;
    let model = find_model(args, &layout, environment)?;
    if args.now && model.is_empty() {
        check_kept_model(&layout, environment)?;
    }
    let tree = Tree::new(&layout, args.dry_run);

    for (name, source) in BINARIES.iter().zip(&binaries) {
        tree.copy(source, &layout.bin.join(name), 0o755)?;
    }
    for file in layout.files() {
        tree.write(&file.path, &file.text, 0o644)?;
    }
    let before = [&layout.sysusers, &layout.tmpfiles];
    if let (Some(manager), [Some(sysusers), Some(tmpfiles)]) = (&manager, before) {
        manager.make_users(sysusers)?;
        manager.make_directories(tmpfiles)?;
    }
    let installed = match &layout.models {
        Some(models) => copy_model(&tree, &model, models)?,
        None => model,
    };
    let named = installed.first();
    let profile = layout.profile(named.map(PathBuf::as_path));
    let kept = tree.write_once(&layout.config, &profile, 0o644)?;
    if let (true, Some(model)) = (kept, named) {
        check_kept_profile(&tree, &layout, model);
    }
    match &manager {
        Some(manager) => {
            if layout.catalog.is_some() {
                manager.update_catalog()?;
            }
            manager.reload()?;
            manager.enable()?;
            if args.now {
                manager.start()?;
            }
        }
        None => {
            let target = layout.units.join("vitriol.target");
            tree.link(&target, &layout.wants.join("vitriol.target"))?;
        }
    }
    for line in advice(args, &layout, named.is_some()) {
        print_line(line);
    }
    Ok(())
}

/// Removes what [`install`] wrote.
///
/// Errors: as of [`install`].
pub fn uninstall(args: &UninstallArgs, environment: &Environment) -> Result<(), Failure> {
    let layout = layout(args.user, args.root.as_deref(), environment)?;
    let manager = manager(&layout, args.dry_run)?;
    let tree = Tree::new(&layout, args.dry_run);
    if let Some(manager) = &manager {
        manager.stop(|file| tree.has(&layout.units.join(file)))?;
    }
    tree.remove(&layout.wants.join("vitriol.target"))?;
    for file in layout.files() {
        tree.remove(&file.path)?;
    }
    for name in BINARIES {
        tree.remove(&layout.bin.join(name))?;
    }
    tree.remove_if_empty(&layout.docs.join("runbooks"))?;
    tree.remove_if_empty(&layout.docs)?;
    if let Some(manager) = &manager {
        if layout.catalog.is_some() {
            manager.update_catalog()?;
        }
        manager.reload()?;
        manager.forget_failures()?;
    }
    for runtime in &layout.runtime {
        tree.remove_all(runtime)?;
    }
    for (path, what) in layout.lasting() {
        if args.purge {
            tree.remove_all(&path)?;
        } else if tree.has(&path) {
            let path = path.display();
            print_line(format_args!("left     {path}: {what}; --purge removes it"));
        }
    }
    for (path, what) in shared(&layout, environment) {
        if tree.has(&path) {
            let path = path.display();
            print_line(format_args!(
                "left     {path}: {what}, which 'vitriol up' uses too; rm -r removes it"
            ));
        }
    }
    if layout.scope == Scope::System && args.purge {
        print_line(
            "left     users vitriol-engine, vitriol-demiurge, vitriol-oom-shield, vitriol-kvtier, vitriol-persist and \
             group vitriol: remove them with userdel and groupdel once no file is theirs",
        );
    }
    Ok(())
}

/// What a user's house has in common with `vitriol up`, so that no uninstall removes it.
fn shared(layout: &Layout, environment: &Environment) -> Vec<(PathBuf, &'static str)> {
    let dirs = environment.dirs().ok();
    match dirs.filter(|_| layout.scope == Scope::User) {
        Some(dirs) => vec![
            (dirs.state, "decisions and logs"),
            (dirs.cache, "models and repacked weights"),
        ],
        None => Vec::new(),
    }
}

fn layout(user: bool, root: Option<&Path>, environment: &Environment) -> Result<Layout, Failure> {
    let layout = match user {
        true => Layout::user(&environment.base_dirs)?,
        false => Layout::system(),
    };
    match root {
        Some(root) => {
            let root = std::path::absolute(root)
                .with_context(|| format!("tree {}", root.display()))
                .or_exit(Exit::Usage)?;
            Ok(layout.below(&root))
        }
        None => Ok(layout),
    }
}

/// The manager that will run the house; none for a tree, which is another machine's.
fn manager(layout: &Layout, dry_run: bool) -> Result<Option<Manager>, Failure> {
    if layout.root.is_some() {
        return Ok(None);
    }
    if layout.scope == Scope::System && !rustix::process::geteuid().is_root() && !dry_run {
        let message = "installing for the machine needs root: use sudo, or install for this user \
                       with --user";
        return Err(Failure::new(Exit::Dependency, message));
    }
    // What would be done on a machine with systemd can be said on any.
    if !dry_run && !Path::new("/run/systemd/system").is_dir() {
        let message = "systemd does not run here; 'vitriol up' runs the house without it, and \
                       --root DIR writes the units into the tree of another machine";
        return Err(Failure::new(Exit::Dependency, message));
    }
    Ok(Some(Manager::new(layout.scope, dry_run)))
}

fn find_binaries(bin_dir: Option<&Path>) -> Result<[PathBuf; BINARIES.len()], Failure> {
    let own = std::env::current_exe().or_exit(Exit::Internal)?;
    let directory = bin_dir.or_else(|| own.parent()).unwrap_or(Path::new("/"));
    let binaries = BINARIES.map(|name| directory.join(name));
    match binaries.iter().find(|binary| !binary.is_file()) {
        None => Ok(binaries),
        Some(missing) => {
            let message = format!(
                "{}: not found; build it with 'cargo build --release' or name its directory with \
                 --bin-dir",
                missing.display()
            );
            Err(Failure::new(Exit::Dependency, message))
        }
    }
}

/// The files of the model the house shall run, the first of them the one that a profile names: of
/// the named model, else for a machine of the default one, should it be in the cache of the user who
/// calls (under sudo root). A user's own house finds the cache by itself.
fn find_model(
    args: &InstallArgs,
    layout: &Layout,
    environment: &Environment,
) -> Result<Vec<PathBuf>, Failure> {
    let cached = || environment.dirs().ok().map(|dirs| dirs.default_model());
    let model = match &args.model {
        Some(model) => {
            let file = environment.model_file(ModelReference::argument(model))?;
            std::path::absolute(file).or_exit(Exit::Usage)?
        }
        None => match cached().filter(|cached| layout.models.is_some() && cached.is_file()) {
            Some(cached) => cached,
            None => return Ok(Vec::new()),
        },
    };
    // What is no model shall be found out before gigabytes of it are copied.
    let model = Gguf::open(&model)
        .context("model to install")
        .or_exit(Exit::Dependency)?;
    let files = model.parts().iter().map(|part| part.path().to_owned());
    Ok(files.collect())
}

/// Copies the files of a model into the directory `models`; their paths there.
fn copy_model(tree: &Tree<'_>, model: &[PathBuf], models: &Path) -> Result<Vec<PathBuf>, Failure> {
    let copy = |source: &PathBuf| {
        let at = models.join(source.file_name().unwrap_or_default());
        tree.copy(source, &at, 0o644)?;
        Ok(at)
    };
    model.iter().map(copy).collect()
}

/// Whether a house that no model is brought to has one: of the profile that is there or will be
/// written, for a user also the default one in the cache. A wrong profile is the start's to refuse.
///
/// Errors: there is none, so a start would fail (69).
fn check_kept_model(layout: &Layout, environment: &Environment) -> Result<(), Failure> {
    let text = fs::read_to_string(&layout.config).unwrap_or_else(|_| layout.profile(None));
    let Ok(profile) = Profile::parse(&layout.config, &text, &Overrides::new()) else {
        return Ok(());
    };
    let named = profile.model("main");
    // The users of a machine's house have no home, and so no cache to find a default model in.
    let named = named.filter(|named| layout.scope == Scope::User || named.given != Path::new(""));
    let model = named.and_then(|named| environment.model_file(named).ok());
    if model.as_ref().is_some_and(|model| model.is_file()) {
        return Ok(());
    }
    let missing = model.map_or_else(String::new, |model| {
        format!(" ({} is not)", model.display())
    });
    let message = format!(
        "start the house: no model is there{missing}; name one with --model FILE.gguf ('vitriol model \
         fetch', without sudo, leaves the default one in ~/.cache/vitriol/models), or install \
         without --now"
    );
    Err(Failure::new(Exit::Dependency, message))
}

/// A profile that was kept may name another model than the one just brought.
fn check_kept_profile(tree: &Tree<'_>, layout: &Layout, model: &Path) {
    let file = tree.place(&layout.config);
    let Ok(profile) = Profile::load(Some(&file), &Overrides::new()) else {
        print_line(format_args!(
            "note     {} has a mistake: see 'vitriol config check {0}'",
            file.display()
        ));
        return;
    };
    let named = profile.engine("main").map(|engine| engine.model.as_path());
    if named != Some(model) {
        print_line(format_args!(
            "note     {} names the model '{}'; for this one write model = \"{}\" into [engine.main]",
            layout.config.display(),
            named.unwrap_or(Path::new("")).display(),
            model.display()
        ));
    }
}

fn advice(args: &InstallArgs, layout: &Layout, has_model: bool) -> Vec<String> {
    let (sudo, user) = match layout.scope {
        Scope::System => ("sudo ", ""),
        Scope::User => ("", " --user"),
    };
    let mut lines = Vec::new();
    if !has_model && layout.models.is_some() {
        lines.push(format!(
            "next     no model yet: {sudo}vitriol install --model FILE.gguf ('vitriol model fetch', \
             without sudo, leaves the default one in ~/.cache/vitriol/models)"
        ));
    }
    let has_polkit = Path::new(POLKIT).is_dir();
    if layout.polkit.is_some() && layout.root.is_none() && !has_polkit {
        lines.push(
            "note     no polkit on this machine: vitriol-persist cannot have systemd end a daemon \
             that hangs; the watchdogs of the units can"
                .into(),
        );
    }
    if layout.root.is_some() {
        lines.push("next     the machine of this tree makes users and directories at boot".into());
        return lines;
    }
    match args.now {
        false => lines.push(format!(
            "next     {sudo}systemctl{user} start vitriol.target (it starts by itself at boot)"
        )),
        true => lines.push(format!(
            "next     systemctl{user} status 'vitriol*'; the API answers on 127.0.0.1:8265"
        )),
    }
    lines.push(format!(
        "next     after an upgrade: {sudo}systemctl{user} restart vitriol.target"
    ));
    if layout.scope == Scope::User {
        lines.push("next     to run without a login: loginctl enable-linger".into());
    }
    lines
}

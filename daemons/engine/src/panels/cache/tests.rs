use super::*;
use vitriol_testkit::places::zoo_model;

struct Dir {
    temp: tempfile::TempDir,
    model: PathBuf,
}

impl Dir {
    /// A directory with a model file of its own.
    fn new() -> Self {
        let temp = tempfile::tempdir().unwrap();
        let model = temp.path().join("model.gguf");
        fs::copy(zoo_model("llama.f32").unwrap(), &model).unwrap();
        Self { temp, model }
    }

    fn panels(&self) -> PathBuf {
        self.temp.path().join("panels")
    }

    fn cache(&self) -> PanelCache {
        PanelCache::open(&self.panels(), 2).unwrap()
    }

    /// The model's digest, and whether its bytes were read for it.
    fn digest(&self, now: SystemTime) -> (ModelDigest, bool) {
        let gguf = Gguf::open(&self.model).unwrap();
        let mut is_read = false;
        let digest = self.cache().digest(&gguf, now, &mut || is_read = true);
        (digest.unwrap(), is_read)
    }

    /// Names of what is there, by their ends.
    fn files(&self) -> Vec<String> {
        let files = fs::read_dir(self.panels()).unwrap();
        let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.collect();
        names.sort_by_key(|name| name.rsplit('.').next().map(str::to_owned));
        names
    }
}

/// A minute from now, by when files that were just written have settled.
fn later() -> SystemTime {
    SystemTime::now() + Duration::from_secs(60)
}

fn keep(cache: &PanelCache, model: ModelDigest) {
    cache.keep(model, 0, |_| Ok::<_, CacheError>(())).unwrap();
}

#[test]
fn a_digest_is_taken_once_for_each_state_of_a_file() {
    let dir = Dir::new();
    // The file was written a moment ago, and may be again without a trace.
    let (first, is_read) = dir.digest(SystemTime::now());
    assert!(is_read);
    assert_eq!(dir.digest(later()), (first, true));
    assert_eq!(dir.digest(later()), (first, false));

    let file = File::options().write(true).open(&dir.model).unwrap();
    file.set_modified(UNIX_EPOCH).unwrap();
    assert_eq!(
        dir.digest(later()),
        (first, true),
        "another time, the same bytes"
    );
    let mut bytes = fs::read(&dir.model).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    let other = dir.temp.path().join("other.gguf");
    fs::write(&other, &bytes).unwrap();
    fs::rename(&other, &dir.model).unwrap();
    let (second, is_read) = dir.digest(later());
    assert!(is_read && second != first);
    assert_eq!(dir.digest(later()), (second, false));

    let record = dir.panels().join(&dir.files()[0]);
    fs::write(&record, "{").unwrap();
    assert_eq!(
        dir.digest(later()),
        (second, true),
        "a record that cannot be read"
    );
    assert_eq!(dir.files().len(), 1);
}

#[test]
fn a_model_that_is_replaced_meanwhile_has_no_digest() {
    let dir = Dir::new();
    let gguf = Gguf::open(&dir.model).unwrap();
    let other = dir.temp.path().join("other.gguf");
    fs::copy(&dir.model, &other).unwrap();
    fs::rename(&other, &dir.model).unwrap();
    let refused = dir.cache().digest(&gguf, later(), &mut || {});
    assert!(matches!(refused, Err(CacheError::Changing { .. })));
    let bytes = fs::read(&dir.model).unwrap();
    let given = Gguf::from_bytes(&dir.model, bytes).unwrap();
    let refused = dir.cache().digest(&given, later(), &mut || {});
    assert!(matches!(refused, Err(CacheError::Changing { .. })));
    assert!(dir.files().is_empty(), "{:?}", dir.files());
}

#[test]
fn what_no_model_needs_is_cleared_away() {
    let dir = Dir::new();
    let cache = dir.cache();
    let (first, _) = dir.digest(later());
    keep(&cache, first);
    keep(&cache, first);
    assert_eq!(dir.files().len(), 2, "{:?}", dir.files());

    // Another layout's, a writer's that was killed, and one's that lives.
    let odd = ["00-v0.panels", "1-0.new", "README"].map(|name| dir.panels().join(name));
    for path in &odd {
        fs::write(path, "").unwrap();
    }
    let living = Unfinished::create(&dir.panels()).unwrap();
    keep(&cache, first);
    assert_eq!(odd.map(|path| path.exists()), [false, false, true]);
    assert!(living.path.exists());
    drop(living);
    assert_eq!(dir.files().len(), 3, "{:?}", dir.files());

    // The model is replaced: its old panels go when the new ones come.
    let mut bytes = fs::read(&dir.model).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&dir.model, bytes).unwrap();
    let (second, _) = dir.digest(later());
    assert!(cache.find(first).unwrap().is_some());
    keep(&cache, second);
    assert!(cache.find(first).unwrap().is_none());
    assert!(cache.find(second).unwrap().is_some());

    // It is removed, and another one is kept.
    fs::remove_file(&dir.model).unwrap();
    keep(&cache, first);
    assert!(cache.find(second).unwrap().is_none());
}

#[test]
fn a_write_that_fails_leaves_nothing_and_harms_nothing() {
    let dir = Dir::new();
    let cache = dir.cache();
    let (model, _) = dir.digest(later());
    let before = dir.files();
    let full = cache.keep(model, u64::MAX, |_| Ok::<_, CacheError>(()));
    assert!(matches!(full, Err(CacheError::Full { .. })));
    let lost = || CacheError::Lost { path: dir.panels() };
    assert!(cache.keep(model, 0, |_| Err(lost())).is_err());
    assert_eq!(dir.files(), before);

    keep(&cache, model);
    assert!(cache.keep(model, 0, |_| Err(lost())).is_err());
    assert!(cache.find(model).unwrap().is_some());
    assert_eq!(dir.files().len(), 2);
}

#[test]
fn others_may_not_write_to_the_directory() {
    use std::os::unix::fs::PermissionsExt;
    let dir = Dir::new();
    dir.cache();
    fs::set_permissions(dir.panels(), fs::Permissions::from_mode(0o777)).unwrap();
    let refused = PanelCache::open(&dir.panels(), 1);
    assert!(matches!(refused, Err(CacheError::Directory(_))));
    let below_a_file = PanelCache::open(&dir.model.join("panels"), 1);
    assert!(matches!(below_a_file, Err(CacheError::Directory(_))));
}

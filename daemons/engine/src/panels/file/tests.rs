use super::*;
use std::sync::{Arc, Mutex};

const ROWS: usize = 20;
const COLS: usize = 512;
const MODEL: ModelDigest = ModelDigest([7; 32]);

/// A matrix of each type of weights, of bytes that are the same everywhere.
fn matrices() -> Vec<(TensorType, PanelMatrix)> {
    let mut state = 1u32;
    let mut byte = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    let weights = TensorType::ALL.iter().filter_map(|&tensor_type| {
        let bytes = tensor_type.row_bytes(COLS)? * ROWS;
        let bytes: Vec<u8> = (0..bytes).map(|_| byte()).collect();
        Some((
            tensor_type,
            PanelMatrix::pack(tensor_type, ROWS, COLS, &bytes).ok()?,
        ))
    });
    weights.collect()
}

/// A writer whose bytes can be had, and which is full after some.
#[derive(Clone)]
struct Disk {
    bytes: Arc<Mutex<Vec<u8>>>,
    room: usize,
}

impl Disk {
    fn of(room: usize) -> Self {
        Self {
            bytes: Arc::default(),
            room,
        }
    }
}

impl Write for Disk {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut written = self.bytes.lock().unwrap();
        let n = bytes.len().min(self.room - written.len());
        written.extend(&bytes[..n]);
        match n {
            0 if !bytes.is_empty() => Err(io::ErrorKind::StorageFull.into()),
            n => Ok(n),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn write(
    matrices: &[(TensorType, PanelMatrix)],
    out: impl Write + 'static,
) -> Result<(), PanelFileError> {
    let mut writer = PanelWriter::begin("x.new".as_ref(), Box::new(out), MODEL, 2)?;
    for (tensor_type, matrix) in matrices {
        writer.add(tensor_type.name(), 0, matrix)?;
        writer.add(tensor_type.name(), 1, matrix)?;
    }
    writer.finish()
}

/// A whole file of panels.
fn written(matrices: &[(TensorType, PanelMatrix)]) -> Vec<u8> {
    let disk = Disk::of(usize::MAX);
    write(matrices, disk.clone()).unwrap();
    let bytes = disk.bytes.lock().unwrap();
    bytes.clone()
}

fn open(path: &Path) -> Result<PanelFile, PanelFileError> {
    PanelFile::open(path, MODEL, 2)
}

fn fault(error: PanelFileError) -> Fault {
    match error {
        PanelFileError::Unsound { fault, .. } => fault,
        other => panic!("{other}"),
    }
}

#[test]
fn every_type_comes_back_as_it_was_packed() {
    let matrices = matrices();
    assert!(matrices.len() > 20, "{}", matrices.len());
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.panels");
    std::fs::write(&path, written(&matrices)).unwrap();
    let file = open(&path).unwrap();
    for (tensor_type, matrix) in &matrices {
        for part in [0, 1] {
            let read = file.matrix(tensor_type.name(), part, *tensor_type, ROWS, COLS);
            let read = read.unwrap();
            assert_eq!(read.kind(), matrix.kind());
            assert!(read.panel_bytes() == matrix.panel_bytes(), "{tensor_type}");
        }
        let start = file.entries[&(tensor_type.name().to_owned(), 1)].start;
        assert_eq!(start % PAGE_BYTES, 0);
    }
    // Two of these have values that only plain floats hold.
    let decoded = matrices
        .iter()
        .filter(|(_, matrix)| matrix.kind().is_decoded);
    assert_eq!(decoded.count(), 1, "mxfp4 with scales of any size");
    for (tensor, part, rows, cols) in [
        ("q8_0", 2, ROWS, COLS),
        ("none", 0, ROWS, COLS),
        ("q8_0", 0, ROWS + 1, COLS),
        ("q8_0", 0, ROWS, COLS + 32),
    ] {
        let refused = file.matrix(tensor, part, TensorType::Q8_0, rows, cols);
        assert!(matches!(fault(refused.unwrap_err()), Fault::Lacks { .. }));
    }
}

/// Files of this layout are read by every later build of it. If this fails, panels changed: add one to
/// `LAYOUT_VERSION` and put the new digest here.
#[test]
fn the_layout_version_stands_for_these_bytes() {
    let mut all = blake3::Hasher::new();
    for (tensor_type, matrix) in matrices() {
        all.update(tensor_type.name().as_bytes());
        all.update(matrix.panel_bytes());
    }
    let found = all.finalize().to_hex();
    assert_eq!((LAYOUT_VERSION, &found[..16]), (1, "4243829137b5ca86"));
}

#[test]
fn no_damaged_byte_goes_unnoticed() {
    let q8_0 = matrices()
        .into_iter()
        .find(|(of, _)| *of == TensorType::Q8_0);
    let matrices = [q8_0.unwrap()];
    let sound = written(&matrices);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.panels");
    let read = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        let file = open(&path)?;
        let matrix = |part| file.matrix("q8_0", part, TensorType::Q8_0, ROWS, COLS);
        Ok::<_, PanelFileError>((matrix(0)?, matrix(1)?))
    };
    read(&sound).unwrap();
    let mut noticed = 0;
    for at in (0..sound.len())
        .step_by(61)
        .chain(sound.len() - 200..sound.len())
    {
        let mut bytes = sound.clone();
        bytes[at] ^= 0x10;
        match read(&bytes) {
            Err(error) => {
                fault(error);
                noticed += 1;
            }
            // Between head and panels, or between panels: nothing that is read.
            Ok(matrices_read) => {
                assert_eq!(sound[at], 0, "byte {at}");
                let expected = matrices[0].1.panel_bytes();
                assert!(matrices_read.0.panel_bytes() == expected);
                assert!(matrices_read.1.panel_bytes() == expected);
            }
        }
    }
    assert!(noticed > sound.len() / 100, "{noticed} of {}", sound.len());
    for len in [0, 1, 40, 4096, sound.len() / 2, sound.len() - 1] {
        let error = read(&sound[..len]).unwrap_err();
        assert_eq!(fault(error), Fault::Foreign, "{len}");
    }
}

#[test]
fn other_files_are_told_apart() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.panels");
    let sound = written(&[]);
    std::fs::write(&path, &sound).unwrap();
    open(&path).unwrap();
    let other = PanelFile::open(&path, ModelDigest([8; 32]), 1).unwrap_err();
    assert_eq!(fault(other), Fault::OtherModel);

    let mut older = sound.clone();
    older[8] = 0;
    std::fs::write(&path, older).unwrap();
    assert_eq!(fault(open(&path).unwrap_err()), Fault::Layout { found: 0 });

    // A table that claims to be as large as it likes.
    for bytes in [u64::MAX, TABLE_BYTES_MAX + 1, sound.len() as u64] {
        let mut long = sound.clone();
        let foot = sound.len() - FOOT_BYTES;
        long[foot..foot + 8].copy_from_slice(&bytes.to_le_bytes());
        std::fs::write(&path, long).unwrap();
        assert_eq!(fault(open(&path).unwrap_err()), Fault::Table);
    }
    std::fs::write(&path, vec![b'x'; 10_000]).unwrap();
    assert_eq!(fault(open(&path).unwrap_err()), Fault::Foreign);
    assert!(matches!(
        open(dir.path()),
        Err(PanelFileError::Unsound { .. })
    ));
}

#[test]
fn a_full_disk_is_an_error_wherever_it_comes() {
    let matrices: Vec<_> = matrices().into_iter().take(2).collect();
    let whole = written(&matrices).len();
    for room in [0, 20, 48, 4096, whole / 2, whole - 1] {
        let error = write(&matrices, Disk::of(room)).unwrap_err();
        let PanelFileError::Io { source, .. } = error else {
            panic!("{error}");
        };
        assert_eq!(source.kind(), io::ErrorKind::StorageFull, "{room}");
    }
    write(&matrices, Disk::of(whole)).unwrap();
    // The kernel's own.
    let full = File::options().write(true).open("/dev/full").unwrap();
    let error = write(&matrices, full).unwrap_err();
    assert!(error.to_string().contains("x.new: cannot write"), "{error}");
}

//! Arrays of f32 in NumPy's .npy format, as the golden logits are kept.
//!
//! Layout: magic `\x93NUMPY`, version (major, minor), header length (u16, from version 2 on u32,
//! little-endian), a Python dict literal padded with spaces, then the values.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

/// A dense f32 array in C order.
#[derive(Clone, Debug, PartialEq)]
pub struct Npy {
    pub shape: Vec<usize>,
    pub values: Vec<f32>,
}

impl Npy {
    /// Reads `path`. Errors: not a little-endian f32 array in C order, or cut short.
    pub fn read(path: &Path) -> Result<Npy> {
        let bytes = std::fs::read(path).with_context(|| format!("read {}", path.display()))?;
        Npy::parse(&bytes).with_context(|| format!("{}", path.display()))
    }

    /// Row `index` of the first axis.
    pub fn row(&self, index: usize) -> &[f32] {
        let width: usize = self.shape[1..].iter().product();
        &self.values[index * width..(index + 1) * width]
    }

    fn parse(bytes: &[u8]) -> Result<Npy> {
        ensure!(bytes.starts_with(b"\x93NUMPY"), "not an .npy file");
        let (start, length) = match bytes.get(6..12) {
            Some(&[1, _, a, b, ..]) => (10, usize::from(u16::from_le_bytes([a, b]))),
            Some(&[2 | 3, _, a, b, c, d]) => (12, u32::from_le_bytes([a, b, c, d]) as usize),
            _ => bail!("unknown .npy version or cut header"),
        };
        let header = bytes
            .get(start..start + length)
            .context("header cut short")?;
        let header = std::str::from_utf8(header).context("header is not text")?;
        ensure!(header.contains("'<f4'"), "not little-endian f32: {header}");
        ensure!(
            header.contains("'fortran_order': False"),
            "not in C order: {header}"
        );
        let shape = shape(header).with_context(|| format!("no shape in {header}"))?;
        let values: Vec<f32> = bytes[start + length..]
            .chunks_exact(4)
            .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
            .collect();
        let expected: usize = shape.iter().product();
        ensure!(
            values.len() == expected,
            "{} values for shape {shape:?}",
            values.len()
        );
        Ok(Npy { shape, values })
    }
}

fn shape(header: &str) -> Option<Vec<usize>> {
    let (_, rest) = header.split_once("'shape': (")?;
    let (axes, _) = rest.split_once(')')?;
    axes.split(',')
        .map(str::trim)
        .filter(|a| !a.is_empty())
        .map(|a| a.parse().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(header: &str, values: &[f32]) -> Vec<u8> {
        let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
        bytes.extend((header.len() as u16).to_le_bytes());
        bytes.extend(header.as_bytes());
        bytes.extend(values.iter().flat_map(|v| v.to_le_bytes()));
        bytes
    }

    #[test]
    fn a_matrix_comes_back_by_rows() {
        let header = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }\n";
        let npy = Npy::parse(&file(header, &[1., 2., 3., 4., 5., 6.])).unwrap();
        assert_eq!(npy.shape, [2, 3]);
        assert_eq!(npy.row(1), [4., 5., 6.]);
    }

    #[test]
    fn other_layouts_and_cut_files_are_refused() {
        let good = "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }";
        assert!(Npy::parse(&file(good, &[1., 2.])).is_ok());
        assert!(Npy::parse(&file(good, &[1.])).is_err());
        assert!(Npy::parse(&file(&good.replace("<f4", "<f8"), &[1., 2.])).is_err());
        assert!(Npy::parse(&file(&good.replace("False", "True"), &[1., 2.])).is_err());
        let whole = file(good, &[1., 2.]);
        for cut in 0..whole.len() {
            assert!(Npy::parse(&whole[..cut]).is_err(), "cut at {cut}");
        }
    }
}

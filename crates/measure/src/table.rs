use std::fmt;

/// A Markdown table; cells are text, the first column to the left, the others to the right.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    header: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    #[must_use]
    pub fn new<S: Into<String>>(header: impl IntoIterator<Item = S>) -> Self {
        Self {
            header: header.into_iter().map(Into::into).collect(),
            rows: Vec::new(),
        }
    }

    /// Adds a row; missing cells are empty, cells beyond the header's are left out.
    pub fn push<S: Into<String>>(&mut self, cells: impl IntoIterator<Item = S>) {
        let mut row: Vec<String> = cells.into_iter().map(Into::into).collect();
        row.resize(self.header.len(), String::new());
        self.rows.push(row);
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut line = |cells: &[String]| {
            f.write_str("|")?;
            for cell in cells {
                // A bar would end the cell, a line break the table.
                let cell = cell.replace('|', "\\|").replace(['\n', '\r'], " ");
                write!(f, " {cell} |")?;
            }
            f.write_str("\n")
        };
        line(&self.header)?;
        let rules: Vec<String> = (0..self.header.len())
            .map(|column| if column == 0 { "---" } else { "---:" }.to_owned())
            .collect();
        line(&rules)?;
        self.rows.iter().try_for_each(|row| line(row))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_kept_apart() {
        let mut table = Table::new(["row", "ours"]);
        table.push(["pp512", "a|b\nc"]);
        table.push(["tg0"]);
        table.push(["x", "y", "too much"]);
        let expected =
            "| row | ours |\n| --- | ---: |\n| pp512 | a\\|b c |\n| tg0 |  |\n| x | y |\n";
        assert_eq!(table.to_string(), expected);
    }
}

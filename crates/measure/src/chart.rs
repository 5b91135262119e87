use std::fmt;

use crate::{Summary, rounded};

/// One measured quantity in a chart.
#[derive(Clone, Debug, PartialEq)]
pub struct Bar {
    /// What the bars stand for, e.g. `tg8192`.
    pub label: String,
    /// (who, how much), in the same unit; bars of one label are drawn to one scale.
    pub values: Vec<(String, Summary)>,
}

/// Horizontal bars, one block a label, as SVG. Blocks have scales of their own: only bars of one
/// block compare. A thin line shows least to most.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Chart {
    pub title: String,
    pub bars: Vec<Bar>,
}

const WIDTH: usize = 860;
const LABEL_WIDTH: usize = 190;
const VALUE_WIDTH: usize = 130;
const BAR_HEIGHT: usize = 14;
const GAP: usize = 12;
const TOP: usize = 44;
/// Told apart by the colour-blind too, and in grey.
const COLOURS: [&str; 3] = ["#0072b2", "#e69f00", "#777777"];

impl fmt::Display for Chart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows: usize = self.bars.iter().map(|bar| bar.values.len()).sum();
        let height = TOP + rows * (BAR_HEIGHT + 2) + self.bars.len() * GAP + GAP;
        writeln!(
            f,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
             viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" font-size=\"12\">"
        )?;
        writeln!(f, "<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>")?;
        let title = escaped(&self.title);
        writeln!(f, "<text x=\"8\" y=\"22\" font-size=\"15\">{title}</text>")?;
        let mut y = TOP;
        for bar in &self.bars {
            y = write_block(f, bar, y)? + GAP;
        }
        writeln!(f, "</svg>")
    }
}

/// Draws one block from `y` on; where the next may begin.
fn write_block(f: &mut fmt::Formatter<'_>, bar: &Bar, mut y: usize) -> Result<usize, fmt::Error> {
    let most = bar.values.iter().map(|(_, s)| s.max).fold(0.0, f64::max);
    let room = (WIDTH - LABEL_WIDTH - VALUE_WIDTH) as f64;
    let length = |value: f64| match most > 0.0 {
        true => (value / most).clamp(0.0, 1.0) * room,
        false => 0.0,
    };
    for (index, (who, summary)) in bar.values.iter().enumerate() {
        let baseline = y + BAR_HEIGHT - 3;
        let label = match index {
            0 => format!("{} {who}", bar.label),
            _ => who.clone(),
        };
        let colour = COLOURS[index % COLOURS.len()];
        let (left, middle) = (LABEL_WIDTH as f64, y as f64 + BAR_HEIGHT as f64 / 2.0);
        writeln!(
            f,
            "<text x=\"{}\" y=\"{baseline}\" text-anchor=\"end\">{}</text>",
            LABEL_WIDTH - 8,
            escaped(&label)
        )?;
        writeln!(
            f,
            "<rect x=\"{LABEL_WIDTH}\" y=\"{y}\" width=\"{:.1}\" height=\"{BAR_HEIGHT}\" \
             fill=\"{colour}\"/>",
            length(summary.median)
        )?;
        writeln!(
            f,
            "<line x1=\"{:.1}\" x2=\"{:.1}\" y1=\"{middle}\" y2=\"{middle}\" stroke=\"#000000\"/>",
            left + length(summary.min),
            left + length(summary.max)
        )?;
        writeln!(
            f,
            "<text x=\"{:.1}\" y=\"{baseline}\">{}</text>",
            left + length(summary.max) + 6.0,
            rounded(summary.median)
        )?;
        y += BAR_HEIGHT + 2;
    }
    Ok(y)
}

/// Text that is no markup, whatever is in it.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            // Not allowed in XML at all.
            control if control.is_control() => out.push(' '),
            other => out.push(other),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary(samples: &[f64]) -> Summary {
        Summary::of(samples).unwrap()
    }

    fn chart(bars: Vec<Bar>) -> String {
        let title = "a < b & \u{1}c".to_owned();
        Chart { title, bars }.to_string()
    }

    #[test]
    fn bars_of_a_block_share_its_scale() {
        let svg = chart(vec![
            Bar {
                label: "tg0".into(),
                values: vec![
                    ("ours".into(), summary(&[400.0])),
                    ("theirs".into(), summary(&[100.0])),
                ],
            },
            Bar {
                label: "load".into(),
                values: vec![("ours".into(), summary(&[0.2]))],
            },
        ]);
        let room = (WIDTH - LABEL_WIDTH - VALUE_WIDTH) as f64;
        for width in [room, room / 4.0] {
            let wanted = format!("width=\"{width:.1}\"");
            assert!(svg.contains(&wanted), "{wanted} in {svg}");
        }
        assert!(svg.contains(">tg0 ours<") && svg.contains(">theirs<") && svg.contains(">0.200<"));
        assert_eq!(svg.matches("fill=\"#0072b2\"").count(), 2);
    }

    #[test]
    fn text_is_no_markup_and_an_empty_chart_is_one() {
        let svg = chart(Vec::new());
        assert!(svg.contains("a &lt; b &amp;  c"), "{svg}");
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
        let zero = Bar {
            label: "none".into(),
            values: vec![("ours".into(), summary(&[0.0]))],
        };
        assert!(!chart(vec![zero]).contains("NaN"));
    }
}

//! Tables of text.

/// Rows with their cells in columns as wide as the widest one, two spaces apart. `right` says which columns are numbers.
pub fn columns(rows: &[Vec<String>], right: &[usize]) -> String {
    let count = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| rows.iter().filter_map(|row| Some(row.get(column)?.chars().count())).max().unwrap_or(0);
    let widths: Vec<usize> = (0..count).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, width))| {
            if right.contains(&column) { format!("{cell:>width$}  ") } else { format!("{cell:<width$}  ") }
        });
        text += cells.collect::<String>().trim_end();
        text.push('\n');
    }
    text
}

//! Tables that look alike everywhere.

use comfy_table::{CellAlignment, ContentArrangement, LineStyle, Table, TableStyle};

/// A table whose columns from `numbers` on are numbers.
pub(crate) fn table(header: &[&str], numbers: usize) -> Table {
    let mut table = Table::new();
    let rule = LineStyle::none().fill('─').junction('─');
    table.load_style(TableStyle::new().header_separator(rule)).set_content_arrangement(ContentArrangement::Dynamic);
    table.set_header(header.to_vec());
    for (n, column) in table.column_iter_mut().enumerate() {
        if n >= numbers {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// Bytes as people say them.
pub(crate) fn bytes(n: u64) -> String {
    match n {
        n if n < 1 << 10 => format!("{n} B"),
        n if n < 1 << 20 => format!("{:.1} KiB", n as f64 / 1024.0),
        n if n < 1 << 30 => format!("{:.1} MiB", n as f64 / (1u64 << 20) as f64),
        n => format!("{:.1} GiB", n as f64 / (1u64 << 30) as f64),
    }
}

/// Nanoseconds as people say them.
pub(crate) fn time(ns: f64) -> String {
    match ns {
        ns if ns < 1e3 => format!("{ns:.0} ns"),
        ns if ns < 1e6 => format!("{:.2} µs", ns / 1e3),
        ns if ns < 1e9 => format!("{:.2} ms", ns / 1e6),
        ns => format!("{:.2} s", ns / 1e9),
    }
}

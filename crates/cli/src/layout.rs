//! `millrace layout`: where everything lies in a resident kernel's memory.

use millrace::resident::layout;

use crate::{Failure, table::table};

pub(crate) fn layout(wgsl: bool, json: bool) -> Result<(), Failure> {
    if wgsl {
        print!("{}", layout::wgsl());
        return Ok(());
    }
    let rows = layout::table();
    if json {
        let rows: Vec<_> = rows
            .iter()
            .map(|row| {
                let (name, word) = row.wgsl.clone().unzip();
                serde_json::json!({
                    "block": row.block, "field": row.field, "offset": row.offset, "size": row.size,
                    "wgsl": name, "word": word,
                })
            })
            .collect();
        let text = serde_json::to_string_pretty(&serde_json::json!({ "rows": rows }));
        println!("{}", text.map_err(|error| Failure::Failed(error.to_string()))?);
        return Ok(());
    }
    for block in rows.chunk_by(|a, b| a.block == b.block) {
        let end = block.last().map_or(0, |row| row.offset + row.size);
        let mut out = table(&[&format!("{}, {end} bytes", block[0].block), "offset", "bytes", "in WGSL"], 1);
        for row in block {
            let name = row.wgsl.as_ref().map_or_else(String::new, |(name, word)| format!("{name} = {word}u"));
            out.add_row([row.field.to_owned(), row.offset.to_string(), row.size.to_string(), name]);
        }
        println!("{out}\n");
    }
    Ok(())
}

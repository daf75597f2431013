//! The shortest program: a prompt in, text out.
//!
//! `cargo run --release -p engraft --example 01_generate`
//!
//! The embedded demo model answers; `engraft::open("path/to/model")` takes a folder or a `.gguf` file
//! instead.

use engraft::GenerateOptions;
use std::io::Write;

fn main() -> engraft::Result<()> {
    let model = engraft::demo()?;

    // Pieces arrive as they are sampled and never break a character.
    let prompt = "This package provides";
    print!("{prompt}");
    let mut text = model.generate(prompt, &GenerateOptions::new().max_new_tokens(48).greedy())?;
    for piece in text.by_ref() {
        print!("{}", piece?);
        let _ = std::io::stdout().flush();
    }

    let stats = text.stats();
    println!("\n{} tokens at {:.0} per second", stats.tokens.len(), stats.decode_rate());
    Ok(())
}

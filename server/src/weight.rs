//! What a body takes as values: many times the bytes that it has as text.

/// Bytes that a value takes in a list, which grows by doubling.
const VALUE: usize = 64;
/// Bytes of the smallest list: room for four values, and what the allocator adds.
const LIST: usize = 160;
/// Bytes of the smallest object: a node of a tree.
const OBJECT: usize = 768;
/// Bytes that one of the two quotes of a text stands for: the text's own length is counted with the body's.
const QUOTE: usize = 24;

/// Bytes that a body of JSON takes at most once it is parsed, without parsing it; what stands in its texts is
/// counted as if it were JSON.
pub fn parsed(body: &[u8]) -> usize {
    let of = |byte: &u8| match byte {
        b',' => VALUE,
        b'[' => LIST,
        b'{' => OBJECT,
        b'"' => QUOTE,
        _ => 0,
    };
    VALUE + body.len() + body.iter().map(of).sum::<usize>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_values_weigh_many_times_their_text_and_texts_little_more() {
        let list = format!("[{}0]", "0,".repeat(1000));
        assert!((64_000..80_000).contains(&parsed(list.as_bytes())), "{}", parsed(list.as_bytes()));
        let objects = format!("[{}0]", "{\"a\":0},".repeat(1000));
        assert!(parsed(objects.as_bytes()) > 768_000);
        let text = format!("{{\"prompt\": \"{}\"}}", "This package provides text. ".repeat(1000));
        assert!(parsed(text.as_bytes()) < 2 * text.len(), "{}", parsed(text.as_bytes()));
    }
}

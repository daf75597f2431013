//! `model-check REQUESTS PAGES AHEAD EACH QUIET [together] [priorities]`: visits every state of these sizes
//! and says how many there are.

use model_check::{Sizes, visit};

fn main() {
    let number = |place: usize, otherwise: usize| {
        std::env::args().nth(place).and_then(|text| text.parse().ok()).unwrap_or(otherwise)
    };
    let has = |word: &str| std::env::args().any(|text| text == word);
    visit(Sizes {
        requests: number(1, 3),
        pages: number(2, 5),
        ahead: number(3, 1),
        each: number(4, 1),
        quiet: number(5, 0),
        together: has("together"),
        priorities: has("priorities"),
    });
}

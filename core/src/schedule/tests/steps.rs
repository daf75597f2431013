//! What single steps hold.

use super::*;

/// A limit of a step's time is for those that decode next to a prompt: alone it is read at once.
#[test]
fn a_prompt_alone_has_all_the_time() {
    let mut kv = KvManager::new(2, 100, 4, PLENTY, None);
    let mut scheduler = Scheduler::new(Budget { ms: Some(1.0), ..Budget::new(2, 64) });
    let mut lens = |scheduler: &mut Scheduler, step| {
        let mut batch = StepBatch::default();
        scheduler.next(&mut kv, &mut batch).unwrap();
        launch(scheduler, step, &batch);
        collect(scheduler, step, &batch, &mut kv);
        batch.slices.iter().map(|slice| slice.len).collect::<Vec<_>>()
    };
    let submit = |scheduler: &mut Scheduler, id, prompt| {
        let kv = KvManager::new(2, 100, 4, PLENTY, None);
        scheduler.submit(sequence(id, prompt, 5, None), &kv).unwrap();
    };
    submit(&mut scheduler, 0, 60);
    assert_eq!(lens(&mut scheduler, 1), [60]);
    submit(&mut scheduler, 1, 60);
    // Nothing is known of times yet: next to one that decodes, as few as a step has in any case.
    assert_eq!(lens(&mut scheduler, 2), [1, 16]);
}

/// Texts that run as a whole fill a step to its last token and its last row of logits.
#[test]
fn whole_texts_fill_a_step() {
    let lens = |budget: Budget, asked: std::ops::Range<usize>| {
        let mut kv = KvManager::new(4, 8, 4, PLENTY, None);
        let mut scheduler = Scheduler::new(budget);
        for id in 0..4 {
            let text = Sequence { asked: asked.clone(), ..Sequence::new(id, vec![0; 10], 0, ()) };
            scheduler.submit_whole(text);
        }
        let mut batch = StepBatch::default();
        scheduler.next_whole(&mut kv, &mut batch);
        batch.slices.len()
    };
    for (tokens, texts) in [(29, 2), (30, 3), (31, 3), (400, 4)] {
        assert_eq!(lens(Budget::new(4, tokens), 0..0), texts, "{tokens} tokens");
    }
    for (rows, texts) in [(8, 2), (9, 3), (10, 3), (12, 4)] {
        assert_eq!(lens(Budget { rows, ..Budget::new(4, 400) }, 7..10), texts, "{rows} rows");
    }
}

//! Files that are no model are refused in a sentence that names them.

use kp_core::{Engine, hal::DType};
use kp_embed::model::{MiniLm, Precision};
use std::{
    fs,
    path::{Path, PathBuf},
};

/// Knows two words.
const WORDS: &str =
    r#"{"version":"1.0","added_tokens":[],"model":{"type":"WordLevel","vocab":{"a":0,"b":1},"unk_token":"a"}}"#;

struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        let path = std::env::temp_dir().join(format!("kp-embed-{}", std::process::id()));
        fs::create_dir_all(&path).expect("the temporary folder can be made");
        Self(path)
    }

    fn put(&self, name: &str, bytes: &[u8]) {
        fs::write(self.0.join(name), bytes).expect("it can be written");
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Left behind, it would only be litter.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Tensors of zeros, in f32.
fn weights(tensors: &[(&str, &[usize])]) -> Vec<u8> {
    let mut at = 0;
    let entries: Vec<String> = tensors
        .iter()
        .map(|(name, shape)| {
            let start = at;
            at += DType::F32.bytes(shape.iter().product::<usize>() as u64);
            format!(r#""{name}":{{"dtype":"F32","shape":{shape:?},"data_offsets":[{start},{at}]}}"#)
        })
        .collect();
    let header = format!("{{{}}}", entries.join(","));
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &vec![0; at as usize]].concat()
}

#[test]
fn what_is_no_model_is_refused_in_a_sentence() {
    let engine = Engine::builder().device("cpu").memory_only().open().expect("the CPU backend is compiled in");
    let folder = Folder::new();
    let refused = |dir: &Path| match MiniLm::open(&engine, dir, Precision::F32) {
        Ok(_) => panic!("it is no model"),
        Err(error) => format!("{error:#}"),
    };
    assert!(refused(&folder.0).starts_with("model.safetensors and tokenizer.json is not in "));
    let words = "embeddings.word_embeddings.weight";
    let good = weights(&[(words, &[2, 384])]);
    folder.put("model.safetensors", &good);
    assert!(refused(&folder.0).starts_with("tokenizer.json is not in "));
    folder.put("tokenizer.json", b"{");
    assert!(refused(&folder.0).starts_with("cannot read tokenizer.json: "));
    folder.put("tokenizer.json", WORDS.as_bytes());
    assert!(refused(&folder.0).contains("no embeddings.position_embeddings.weight among 1 tensors: "));

    for (file, words) in [
        (&good[..good.len() - 1], "model.safetensors: "),
        (&good[..7], "model.safetensors: "),
        (b"".as_slice(), "model.safetensors: "),
        (&weights(&[]), "no embeddings.word_embeddings.weight among 0 tensors"),
        (&weights(&[(words, &[])]), "must be of rows of 384 numbers, its shape is []"),
        (&weights(&[(words, &[2, 385])]), "must be of rows of 384 numbers, its shape is [2, 385]"),
        (&weights(&[(words, &[1, 384])]), "tokenizer.json has 2 words and model.safetensors 1: they are of two models"),
    ] {
        folder.put("model.safetensors", file);
        let error = refused(&folder.0);
        assert!(error.contains(words), "{error}");
    }
}

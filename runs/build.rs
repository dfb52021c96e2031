//! Tells Cargo that the migrations are part of the crate.

fn main() {
    println!("cargo:rerun-if-changed=migrations");
}

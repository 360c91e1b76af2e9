//! Randomness from the kernel, for passwords and the choice of ports.

use std::{fs::File, io::Read as _};

use crate::Error;

const SOURCE: &str = "/dev/urandom";

/// `N` random bytes.
pub(crate) fn bytes<const N: usize>() -> Result<[u8; N], Error> {
    let mut bytes = [0; N];
    File::open(SOURCE)
        .and_then(|mut source| source.read_exact(&mut bytes))
        .map_err(Error::folder(SOURCE))?;
    Ok(bytes)
}

/// A password of 128 random bits in hexadecimal digits, safe in any URL or file.
pub(crate) fn password() -> Result<String, Error> {
    Ok(format!("{:032x}", u128::from_ne_bytes(bytes()?)))
}

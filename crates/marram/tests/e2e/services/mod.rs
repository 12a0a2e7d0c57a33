//! The cells that do something for real programs: caches, compression, TLS, filters, and a neural network.
//! Their clients and servers are third-party programs where there are any.

mod background;
mod classify;
mod compress;
mod compress_cell;
mod memcached;
mod middleboxes;
mod tls;
mod tls_cell;

//! The macro that turns a [`Cell`](crate::Cell) into a module's exports. Knows the names of the ABI and nothing of
//! what the handlers do.

/// Exports a type that implements [`Cell`](crate::Cell) as the module's cell. Use it once in a `cdylib` crate.
///
/// Off Wasm it only checks that the type is a cell, so that the same crate can be tested natively.
///
/// ```
/// use marram_sdk::{Cell, Context, Port};
///
/// #[derive(Default)]
/// struct Echo;
///
/// impl Cell for Echo {
///     fn message(&mut self, context: &mut Context, port: Port, payload: &[u8]) {
///         context.send(port, payload);
///     }
/// }
///
/// marram_sdk::cell!(Echo);
/// # fn main() {}
/// ```
#[macro_export]
macro_rules! cell {
    ($cell:ty) => {
        const _: () = {
            const fn implements_cell<T: $crate::Cell>() {}
            implements_cell::<$cell>();
        };

        #[cfg(target_arch = "wasm32")]
        const _: () = {
            static GUEST: $crate::rim::Guest<$cell> = $crate::rim::Guest::new();

            #[unsafe(no_mangle)]
            extern "C" fn _initialize() {
                GUEST.initialize();
            }

            #[unsafe(no_mangle)]
            extern "C" fn marram_alloc(len: usize) -> *mut u8 {
                GUEST.alloc(len)
            }

            #[unsafe(no_mangle)]
            extern "C" fn marram_open(port: u32, kind: u32) {
                GUEST.open(port, kind);
            }

            #[unsafe(no_mangle)]
            extern "C" fn marram_recv(port: u32, ptr: *const u8, len: usize) {
                GUEST.recv(port, ptr, len);
            }

            #[unsafe(no_mangle)]
            extern "C" fn marram_timer(token: u64) {
                GUEST.timer(token);
            }

            #[unsafe(no_mangle)]
            extern "C" fn marram_task(token: u64) {
                GUEST.task(token);
            }

            #[unsafe(no_mangle)]
            extern "C" fn marram_close(port: u32) {
                GUEST.close(port);
            }
        };
    };
}

declare const bytes: unique symbol
/** A name in the storage's own form: each character is one byte (latin1). */
export type ByteName = string & { readonly [bytes]: true }
/** Names below the endpoint of a storage, none of them empty, `.` or `..`. */
export type StoragePath = readonly ByteName[]

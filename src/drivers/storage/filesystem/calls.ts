import type { Attributes, Entry, NewSmallFile, SmallFile, StorageFault } from '../contract.ts'

/**
 * The calls to the process of a file system; each has one answer. Paths are names of bytes from the
 * endpoint on.
 */
export interface Calls {
  list: {
    ask: { path: string[]; after?: string | undefined; limit: number; brief: boolean }
    answer: { entries: Entry[]; next?: string | undefined }
  }
  stat: { ask: { path: string[] }; answer: Entry }
  open: { ask: { path: string[] }; answer: { file: number; entry: Entry } }
  read: { ask: { file: number; offset: number; length: number }; answer: Buffer }
  close: { ask: { file: number }; answer: undefined }
  digest: { ask: { path: string[] }; answer: string }
  readMany: { ask: { folder: string[]; names: string[] }; answer: SmallFile[] }
  writeMany: {
    ask: { folder: string[]; files: (NewSmallFile & { sha256: string })[]; overwrite: boolean }
    answer: SmallFile['name'][]
  }
  create: {
    ask: { path: string[]; overwrite: boolean; upload?: string | undefined; offset: number }
    answer: number
  }
  append: { ask: { file: number; bytes: Buffer }; answer: undefined }
  /** Ends a part; the bytes stay. */
  keep: { ask: { file: number }; answer: number }
  /** Removes the bytes since `create`; without an upload's name, all bytes. */
  drop: { ask: { file: number }; answer: undefined }
  /** `sha256`: the digest that the bytes must have. */
  commit: {
    ask: { file: number; sha256?: string | undefined; attributes?: Attributes | undefined }
    answer: { entry: Entry; sha256: string }
  }
  /** Renames the temporary file of an earlier upload. */
  adopt: { ask: { path: string[]; upload: string; earlier: readonly string[] }; answer: number }
  received: { ask: { path: string[]; upload: string }; answer: number }
  discard: { ask: { path: string[]; upload: string }; answer: undefined }
  delete: { ask: { path: string[] }; answer: undefined }
  makeDirectory: { ask: { path: string[] }; answer: undefined }
  makeLink: {
    ask: { path: string[]; target: string; overwrite: boolean; modifiedAt?: number | undefined }
    answer: undefined
  }
  setAttributes: { ask: { path: string[]; attributes: Attributes }; answer: undefined }
  space: { ask: Record<string, never>; answer: number }
}
export type CallName = keyof Calls

export interface Where {
  /** An approved absolute path without links. The walk below it follows no link. */
  base: string
  /** The endpoint, below it. */
  below: readonly string[]
}

/** To the process: the place of the endpoint, then calls. */
export type ToHost = Where | { [N in CallName]: { id: number; call: N; ask: Calls[N]['ask'] } }[CallName]

export interface HostFault {
  fault: StorageFault
  message: string
  receivedBytes?: number | undefined
}

/** From the process: an answer, a fault, or bytes of a digest so far. */
export type FromHost =
  | { id: number; answer: unknown }
  | { id: number; fault: HostFault }
  | { id: number; progress: number }

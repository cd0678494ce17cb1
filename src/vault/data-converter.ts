import { fileURLToPath } from 'node:url'
import type { DataConverter } from '@temporalio/common'
import type { VaultKeys } from './keys.ts'
import { payloadCodec } from './payload-codec.ts'

/**
 * File from which the SDK loads the failure converter; a bundle of workflows needs the same one.
 */
export const failureConverterPath = fileURLToPath(
  new URL(`./failure-converter${import.meta.url.endsWith('.ts') ? '.ts' : '.js'}`, import.meta.url),
)

/** How clients and workers encode Temporal's data; without keys it stays plain. */
export const dataConverter = (keys: VaultKeys | undefined): DataConverter => ({
  failureConverterPath,
  ...(keys === undefined ? {} : { payloadCodecs: [payloadCodec(keys)] }),
})

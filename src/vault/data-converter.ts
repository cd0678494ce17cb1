import { fileURLToPath } from 'node:url'
import type { DataConverter } from '@temporalio/common'
import type { VaultKeys } from './keys.ts'
import { payloadCodec } from './payload-codec.ts'

/** File that the SDK loads failures' converter from; a bundle of workflows has to be made with the same. */
export const failureConverterPath = fileURLToPath(
  new URL(`./failure-converter${import.meta.url.endsWith('.ts') ? '.ts' : '.js'}`, import.meta.url),
)

/** How clients and workers write what Temporal keeps; without keys it stays plain. */
export const dataConverter = (keys: VaultKeys | undefined): DataConverter => ({
  failureConverterPath,
  ...(keys === undefined ? {} : { payloadCodecs: [payloadCodec(keys)] }),
})

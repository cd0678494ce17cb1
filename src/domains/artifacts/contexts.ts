import type { Readable } from 'node:stream'
import busboy from 'busboy'
import { z } from 'zod'
import { sql, type Db } from '../../db/sql.ts'
import { readContext } from '../../drivers/build/context.ts'
import { BuildError, fullStore, isFull } from '../../drivers/build/errors.ts'
import type { ArtifactStore } from '../../drivers/build/store.ts'
import type { Upload } from '../../http/route.ts'
import { Refusal, unacceptableAt } from '../../refusal.ts'
import { BuildContext, contextMediaType, type NewContext } from './schemas.ts'
import { holdBytes } from './store.ts'

export interface ContextParts {
  db: Db
  artifactStore: ArtifactStore
  buildContextLimitBytes: number
  hostId: string
}

/**
 * Bytes that the body of an upload may have beyond its context, for the form around the context.
 */
export const formBytes = 1_048_576

/**
 * Passes the one file of a form to `take`.
 * @returns the result of `take`
 * @throws Refusal 422 for another form
 */
const formFile = async <T>(upload: Upload, take: (file: Readable) => Promise<T>): Promise<T> => {
  const { promise, resolve, reject } = Promise.withResolvers<T>()
  promise.catch(() => undefined)
  let form: ReturnType<typeof busboy>
  try {
    form = busboy({
      headers: { 'content-type': upload.contentType },
      limits: { parts: 2, files: 1, fields: 1, fieldSize: 1_024, headerPairs: 20 },
    })
  } catch {
    throw unacceptableAt(
      'context',
      'the form cannot be read: give Content-Type multipart/form-data with its boundary',
    )
  }
  let taken: Promise<T> | undefined
  const refuse = (message: string) => reject(unacceptableAt('context', message))
  form.on('file', (name, file) => {
    // The code that waits for the form gets this error.
    file.on('error', () => undefined)
    if (name !== 'context') {
      file.resume()
      return refuse('is missing: send the archive as the file field context')
    }
    taken = take(file)
    taken.catch(reject)
  })
  form.on('field', () =>
    refuse('must be a file, and the only field of the form (curl -F context=@context.tar.gz)'),
  )
  for (const limit of ['filesLimit', 'partsLimit', 'fieldsLimit'] as const)
    form.on(limit, () => refuse('must be the only field of the form'))
  form.on('error', () => refuse('the form ends before its last boundary or cannot be read; send all of it'))
  form.on('close', () => {
    if (taken === undefined) refuse('is missing: send the archive as the file field context')
    else taken.then(resolve, reject)
  })
  // A refusal of the body itself (too large, too slow, cut) is the answer to the client.
  upload.stream.on('error', reject)
  upload.stream.pipe(form)
  try {
    return await promise
  } finally {
    upload.stream.unpipe(form)
    form.destroy()
    // Waits until the store has removed the pieces of the cut file.
    await taken?.catch(() => undefined)
  }
}

/** Stores an archive while it arrives. A refused archive leaves no bytes. */
export const uploadContext = async (
  { db, artifactStore, buildContextLimitBytes: limitBytes, hostId }: ContextParts,
  upload: Upload,
): Promise<z.output<typeof BuildContext>> =>
  formFile(upload, async (file) => {
    try {
      await using aside = await artifactStore.aside()
      await readContext(file as AsyncIterable<Buffer>, { limitBytes, keep: aside.write })
      const sizeBytes = aside.size()
      const digest = await aside.keep('contexts')
      return await registerContext({ db, artifactStore, hostId }, { digest, sizeBytes })
    } catch (error) {
      if (error instanceof BuildError) throw unacceptableAt('context', error.message)
      if (isFull(error)) throw new Refusal('unavailable', fullStore)
      throw error
    }
  })

const uriOf = (digest: string): string => `artifact://contexts/${digest.slice(7)}`

/** Records bytes that the store has, unless they are removed meanwhile. */
const registerContext = (
  { db, artifactStore, hostId }: Pick<ContextParts, 'db' | 'artifactStore' | 'hostId'>,
  { digest, sizeBytes }: { digest: string; sizeBytes: number },
): Promise<z.output<typeof BuildContext>> =>
  db.transaction(async (tx) => {
    await holdBytes(tx, digest)
    if ((await artifactStore.sizeOf('contexts', digest)) === undefined)
      throw new Refusal('unavailable', 'the context was deleted while it was registered; upload it again')
    return tx.one(
      BuildContext,
      sql`insert into build_contexts (digest, storage_uri, size_bytes, media_type, host_id)
          values (${digest}, ${uriOf(digest)}, ${sizeBytes}, ${contextMediaType}, ${hostId})
          on conflict on constraint build_contexts_pkey do update set host_id = excluded.host_id
          returning digest, storage_uri, size_bytes, media_type`,
    )
  })

/** The host that has a build context; undefined for a digest that is none's. */
export const hostOfContext = (db: Db, digest: string): Promise<string | undefined> =>
  db.value(z.string(), sql`select host_id from build_contexts where digest = ${digest}`)

/** Registers bytes that the store of this host holds. @throws Refusal 422 for others */
export const registerStored = async (
  { db, artifactStore, hostId }: ContextParts,
  given: z.output<typeof NewContext>,
): Promise<z.output<typeof BuildContext>> => {
  if (given.storageUri !== uriOf(given.digest))
    throw unacceptableAt(
      'storageUri',
      `must be ${uriOf(given.digest)}, the place of the digest in this store`,
    )
  const sizeBytes = await artifactStore.sizeOf('contexts', given.digest)
  if (sizeBytes === undefined)
    throw unacceptableAt(
      'storageUri',
      'names bytes that the store of this host does not have; upload the context',
    )
  if (sizeBytes !== given.sizeBytes)
    throw unacceptableAt(
      'sizeBytes',
      `is ${given.sizeBytes}, and the context has ${sizeBytes} bytes; give that number`,
    )
  return registerContext({ db, artifactStore, hostId }, { digest: given.digest, sizeBytes })
}

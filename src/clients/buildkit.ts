import { join } from 'node:path'
import { Client, credentials, Metadata, status, type ServiceError } from '@grpc/grpc-js'
import { loadSync, type ServiceDefinition } from '@grpc/proto-loader'
import { z } from 'zod'
import { lateWords, NoAnswerError } from './no-answer.ts'

const control = loadSync(join(import.meta.dirname, 'buildkit.proto'))['moby.buildkit.v1.Control'] as ServiceDefinition

const Workers = z.object({
  record: z.array(z.object({ version: z.object({ version: z.string() }).nullish() })),
})

const reasons: Partial<Record<status, string>> = {
  [status.UNAVAILABLE]: 'it is not started, or this account may not use its socket',
  [status.PERMISSION_DENIED]: 'it refuses this account',
  [status.UNAUTHENTICATED]: 'it refuses this account',
  [status.UNIMPLEMENTED]: 'what answers is no BuildKit daemon',
}

/**
 * Asks the BuildKit daemon at a Unix socket for its workers, without which it cannot build; with its version where it gives one.
 * @throws NoAnswerError
 */
export const listWorkers = async (socketPath: string, deadlineMs: number): Promise<{ workers: number; version?: string }> => {
  const { path, requestSerialize, responseDeserialize } = control['ListWorkers']!
  const client = new Client(`unix:${socketPath}`, credentials.createInsecure(), { 'grpc.enable_http_proxy': 0, 'grpc.enable_retries': 0 })
  try {
    const answer = await new Promise<unknown>((resolve, reject) => {
      const deadline = Date.now() + deadlineMs
      client.makeUnaryRequest(path, requestSerialize, responseDeserialize, {}, new Metadata(), { deadline }, (error, value) => {
        if (error === null) resolve(value)
        else reject(error)
      })
    })
    const { record = [] } = Workers.partial().parse(answer)
    const version = record.find((worker) => worker.version?.version)?.version?.version
    return { workers: record.length, ...(version === undefined ? {} : { version }) }
  } catch (error) {
    const { code } = error as Partial<ServiceError>
    const late = code === status.DEADLINE_EXCEEDED ? lateWords(deadlineMs) : undefined
    throw new NoAnswerError(late ?? (code === undefined ? undefined : reasons[code]) ?? 'it answers with an error', { cause: error })
  } finally {
    client.close()
  }
}

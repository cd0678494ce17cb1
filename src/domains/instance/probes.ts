import { request } from 'node:http'
import { connect as connectHttp2, type IncomingHttpHeaders } from 'node:http2'
import { connect } from 'node:net'
import { sql, type Db } from '../../db/sql.ts'
import type { Probe } from './schemas.ts'

/** An answer that takes longer is no answer. */
const deadlineMs = 3_000

/** The outcome of a probe, which may reject; never waits longer than the deadline. */
const probed = async (what: string, remedy: string, work: (signal: AbortSignal) => Promise<string>): Promise<Probe> => {
  const deadline = new AbortController()
  let timer: NodeJS.Timeout | undefined
  const late = new Promise<never>((_, reject) => {
    timer = setTimeout(() => {
      reject(new Error(`no answer within ${String(deadlineMs / 1_000)} s`))
      deadline.abort()
    }, deadlineMs)
  })
  try {
    return { available: true, message: await Promise.race([work(deadline.signal), late]) }
  } catch (error) {
    // Codes only: texts of the system hold paths and host names, and this answer is public.
    const { code, message } = error as NodeJS.ErrnoException
    const reason = code ?? (message.startsWith('no answer') || message.startsWith('answered') ? message : 'it failed')
    return { available: false, message: `${what} does not answer (${reason}); ${remedy}` }
  } finally {
    clearTimeout(timer)
  }
}

export const probeServer = (db: Db): Promise<Probe> =>
  probed('the database', 'the service recovers by itself when it returns', async () => {
    await db.run(sql`select 1`)
    return 'the service and its database answer'
  })

/** Ping of the engine's API; `builderVersion` 2 says that the engine brings BuildKit itself. */
const pingEngine = (socketPath: string, signal: AbortSignal): Promise<{ apiVersion: string; builderVersion: string }> =>
  new Promise((resolve, reject) => {
    const call = request({ socketPath, path: '/_ping', signal, agent: false }, (response) => {
      response.resume()
      const header = (name: string): string => String(response.headers[name] ?? '')
      if (response.statusCode === 200) resolve({ apiVersion: header('api-version'), builderVersion: header('builder-version') })
      else reject(new Error(`answered ${String(response.statusCode)}`))
    })
    call.on('error', reject)
    call.end()
  })

export const probeDocker = (socketPath: string): Promise<Probe> =>
  probed('the container engine', 'start it, and let this user write to its socket', async (signal) => {
    const { apiVersion } = await pingEngine(socketPath, signal)
    return apiVersion === '' ? 'the container engine answers' : `the container engine answers (API ${apiVersion})`
  })

/** Length-delimited messages of field 1 in a protobuf message: the workers of a ListWorkersResponse. */
export const countField1 = (message: Buffer): number => {
  let at = 0
  let count = 0
  const varint = (): number => {
    let value = 0
    for (let shift = 1; at < message.length; shift *= 128) {
      const byte = message[at++] ?? 0
      value += (byte % 128) * shift
      if (byte < 128) break
    }
    return value
  }
  while (at < message.length) {
    const tag = varint()
    // Field 1 is all that this message has; anything else is a newer protocol, and what was counted so far holds.
    if (tag % 8 !== 2) return count
    if (tag >> 3 === 1) count += 1
    const length = varint()
    at += length
  }
  return count
}

/** Asks a BuildKit daemon for its workers over gRPC; an empty list means that it cannot build. */
const listWorkers = (socketPath: string, signal: AbortSignal): Promise<number> =>
  new Promise((resolve, reject) => {
    const session = connectHttp2('http://localhost', { createConnection: () => connect(socketPath) })
    const fail = (error: Error): void => {
      session.destroy()
      reject(error)
    }
    session.on('error', fail)
    signal.addEventListener('abort', () => {
      session.destroy()
    })
    const call = session.request({
      ':method': 'POST',
      ':path': '/moby.buildkit.v1.Control/ListWorkers',
      'content-type': 'application/grpc',
      te: 'trailers',
    })
    const chunks: Buffer[] = []
    let status = '0'
    call.on('response', (headers) => (status = String(headers['grpc-status'] ?? status)))
    call.on('trailers', (headers: IncomingHttpHeaders) => (status = String(headers['grpc-status'] ?? status)))
    call.on('data', (chunk: Buffer) => chunks.push(chunk))
    call.on('error', fail)
    call.on('end', () => {
      session.close()
      if (status === '0') resolve(countField1(Buffer.concat(chunks).subarray(5)))
      else reject(new Error(`answered gRPC status ${status}`))
    })
    // One uncompressed, empty message.
    call.end(Buffer.alloc(5))
  })

/** BuildKit on its own socket, else the one inside the container engine. */
export const probeBuildkit = (buildkitSocket: string, dockerSocket: string): Promise<Probe> =>
  probed('the build backend', 'start buildkitd, or a container engine that has it', async (signal) => {
    const [workers, engine] = await Promise.all([
      listWorkers(buildkitSocket, signal).catch((error: unknown) => error as Error),
      pingEngine(dockerSocket, signal).catch(() => undefined),
    ])
    if (typeof workers === 'number' && workers > 0) return `BuildKit answers with ${String(workers)} worker${workers === 1 ? '' : 's'}`
    if (engine?.builderVersion === '2') return 'the container engine has BuildKit'
    throw typeof workers === 'number' ? new Error('answered without a worker') : workers
  })

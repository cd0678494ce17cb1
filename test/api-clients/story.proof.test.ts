import { execFile, execFileSync } from 'node:child_process'
import { mkdtempSync, readFileSync, statSync, writeFileSync } from 'node:fs'
import { createServer, type Server } from 'node:http'
import type { AddressInfo } from 'node:net'
import { join, resolve } from 'node:path'
import { promisify } from 'node:util'
import { expect } from '@jest/globals'
import { parse } from 'yaml'
import { needs } from '../support/needs.ts'
import { runFolder } from '../support/run-folder.ts'
import { openService, type TestService } from '../support/service.ts'

type Json = Record<string, any>
// The generators come from the registries of npm and PyPI.
const { afterAll, beforeAll, test } = needs('python3-venv')
const root = resolve(import.meta.dirname, '../..')
const run = promisify(execFile)
const folder = mkdtempSync(join(runFolder(), 'clients-'))

let service: TestService
/** Between client and service: loses answers, breaks streams. */
let between: Server
let baseUrl: string
const asked: { method: string; path: string; key: string | undefined; last: string | undefined }[] = []
/** The answer to the last create of a scope. */
let kept = ''
const once = new Set<string>()
const isFirst = (what: string): boolean => !once.has(what) && Boolean(once.add(what))

beforeAll(async () => {
  service = await openService()
  const document = join(folder, 'openapi.json')
  writeFileSync(document, await (await fetch(`${service.rootUrl}/openapi.json`)).text())
  await run(process.execPath, ['bin/clients.mjs', '--document', document], { cwd: root })
  between = createServer((req, res) => {
    const path = req.url ?? ''
    const header = (name: string): string | undefined => req.headers[name] as string | undefined
    const at = {
      method: req.method ?? '',
      path,
      key: header('idempotency-key'),
      last: header('last-event-id'),
    }
    asked.push(at)
    const pass = async (): Promise<void> => {
      if (path.includes('/away/')) {
        if (path.endsWith('/events/')) return void req.socket.destroy()
        res.writeHead(503)
        return void res.end()
      }
      if (path.includes('/not-built/')) {
        res.writeHead(503, { 'content-type': 'application/json', 'retry-after': '1' })
        return void res.end('{"error":"not part of this version","code":"not_built","details":[]}')
      }
      if (path.includes('/in-flight/')) {
        // The first request is answered for longer than a request is tried.
        const times = asked.filter((one) => one.path === path && one.key === at.key).length
        if (times < 6) res.writeHead(409, { 'retry-after': '1' })
        else res.writeHead(201, { 'content-type': 'application/json' })
        return void res.end(times < 6 ? '{"error":"in flight","code":"conflict"}' : kept)
      }
      const chunks: Buffer[] = []
      for await (const chunk of req) chunks.push(chunk as Buffer)
      const headers = { ...req.headers }
      for (const name of ['host', 'connection', 'content-length', 'transfer-encoding']) delete headers[name]
      const isAltered = path.includes('/altered/')
      const answer = await fetch(service.rootUrl + path.replace('/altered/', '/'), {
        method: at.method,
        headers: headers as Record<string, string>,
        ...(chunks.length === 0 ? {} : { body: Buffer.concat(chunks) }),
      })
      const body = Buffer.from(await answer.arrayBuffer())
      // The run was accepted, its answer is lost.
      if (at.method === 'POST' && path.endsWith('/execution-runs/') && isFirst(String(at.key)))
        return void req.socket.destroy()
      if (at.method === 'POST' && path.endsWith('/execution-scopes/') && answer.status === 201)
        kept = body.toString()
      const given = Object.fromEntries(answer.headers)
      delete given['content-encoding']
      delete given['content-length']
      delete given['transfer-encoding']
      res.writeHead(answer.status, given)
      const stream = answer.headers.get('content-type')?.startsWith('text/event-stream') === true
      const second = body.indexOf('\n\n', body.indexOf('\n\n') + 2)
      if (stream && at.last === undefined && second > 0) {
        res.write(body.subarray(0, second + 2))
        return void setTimeout(() => req.socket.destroy(), 50)
      }
      const isOutput = path.endsWith('/outputs/shout.txt')
      // A download and a summary break off within their bytes.
      if (isOutput && isAltered) body[0] = body[0]! ^ 1
      else if ((isOutput || path.endsWith('/summary/')) && isFirst(path)) {
        res.write(body.subarray(0, 5))
        return void setTimeout(() => req.socket.destroy(), 50)
      }
      res.end(answer.status === 204 || answer.status === 304 ? undefined : body)
    }
    pass().catch(() => req.socket.destroy())
  })
  await new Promise<void>((done) => between.listen(0, '127.0.0.1', done))
  baseUrl = `http://127.0.0.1:${String((between.address() as AddressInfo).port)}/api`
}, 400_000)
afterAll(async () => {
  between.closeAllConnections()
  between.close()
  await service[Symbol.asyncDispose]()
})

/** The documents of examples/hello under ids of their own. */
const documentsFor = (key: string): string => {
  const read = (name: string): Json => {
    const text = readFileSync(join(root, 'examples/hello', `${name}.yaml`), 'utf8')
    return parse(text.replaceAll(/\bhello(?=-|,|$)/gm, key)) as Json
  }
  const file = join(folder, `${key}.json`)
  const [environment, scope, workflow] = ['environment', 'scope', 'workflow'].map(read)
  writeFileSync(file, JSON.stringify({ environment, scope, workflow }))
  return file
}

/** A build context. */
const archive = join(folder, 'context.tar.gz')
writeFileSync(join(folder, 'Dockerfile'), 'FROM scratch\n')
execFileSync('tar', ['-czf', archive, '-C', folder, 'Dockerfile'])

const languages = [
  ['ts', process.execPath, 'test/api-clients/story.mjs'],
  ['py', join(root, 'clients/python/.venv/bin/python'), 'test/api-clients/story.py'],
] as const

test.each(languages)(
  '%s: plans, runs, waits, follows events, downloads; nothing is done twice',
  async (key, program, story) => {
    asked.length = 0
    const { stdout } = await run(program, [story, baseUrl, documentsFor(key), archive], {
      cwd: root,
      env: { ...process.env, PYTHONPATH: join(root, 'clients/python') },
      timeout: 120_000,
    })
    const seen = JSON.parse(stdout) as Json
    expect(seen['status']).toBe('completed')
    expect(seen['output']).toMatch(/^HELLO FROM /)
    const sequences = Array.from({ length: seen['events'].length }, (_, i) => i + 1)
    expect(seen['events'].length).toBeGreaterThan(2)
    expect(seen['events']).toEqual(sequences)
    expect(seen['behind']).toEqual(sequences.slice(2))
    expect(seen['paged'].toSorted((a: number, b: number) => a - b)).toEqual(sequences)
    expect(seen['audited'].length).toBeGreaterThan(4)
    expect(new Set(seen['audited']).size).toBe(seen['audited'].length)
    expect(seen['waited']).toBe(JSON.parse(kept).id)
    expect(
      asked.filter(({ path }) => path.endsWith(`/${key}/activities/shout/outputs/shout.txt`)),
    ).toHaveLength(3)
    // Bytes that are not those of the record are no file.
    expect(seen['altered']).toEqual(['DigestMismatch', ['shout.txt']])
    expect(seen['refusals']).toEqual([
      [404, 'missing'],
      [422, 'unacceptable'],
      [503, 'not_built'],
      [422, 'unacceptable'],
    ])
    expect(seen['context']).toBe(statSync(archive).size)
    // Both were sent again until the caller's time was over.
    expect(seen['away']).toEqual(['timeout', 'timeout'])
    for (const part of ['/summary/', '/events/'])
      expect(
        asked.filter(({ path }) => path.includes('/away/') && path.endsWith(part)).length,
      ).toBeGreaterThan(1)
    // The lost answer: the same key again, and one run.
    const starts = asked.filter(({ method, path }) => method === 'POST' && path === '/api/execution-runs/')
    expect(starts).toHaveLength(2)
    expect([starts[0]?.key, typeof starts[0]?.key]).toEqual([starts[1]?.key, 'string'])
    // The broken stream went on behind the second event.
    const streams = asked
      .filter(({ path }) => path === `/api/execution-runs/${key}/events/`)
      .map(({ last }) => last)
    expect(streams.slice(0, 2)).toEqual([undefined, '2'])
    expect(asked.filter(({ path }) => path.includes('/not-built/'))).toHaveLength(1)
  },
  180_000,
)

import { afterAll, beforeAll, expect, test } from '@jest/globals'
import { execFileSync } from 'node:child_process'
import { mkdtempSync, writeFileSync } from 'node:fs'
import { get, type IncomingMessage } from 'node:http'
import { join } from 'node:path'
import { runToEnd } from '../execution-runs/checked.ts'
import { runFolder } from '../support/run-folder.ts'
import { openService, type TestService } from '../support/service.ts'
import { makeWorld } from '../support/worlds.ts'

const count = 20_000
let service: TestService
beforeAll(async () => {
  service = await openService()
  const world = await makeWorld(service, {
    name: 'many',
    cores: [1],
    // Names of 240 bytes: the directory of the ZIP file is longer than 5 MB.
    tasks: [
      {
        name: 'make',
        run: `p=$(printf %0235d 0); seq ${String(count)} | split -l 1 -a 5 -d - "$p"`,
        lane: [0, 0],
      },
    ],
  })
  const record = await runToEnd(service, world, { id: 'many' })
  expect(record.run.status).toBe('completed')
})
afterAll(() => service[Symbol.asyncDispose]())

/** The bytes of an export, read with a pause behind each chunk. */
const slowly = async (path: string, accept: string, pauseMs: number): Promise<Buffer> => {
  const answer = await new Promise<IncomingMessage>((resolve, reject) =>
    get(`${service.baseUrl}${path}`, { headers: { accept } }, resolve).on('error', reject),
  )
  expect(answer.statusCode).toBe(200)
  const parts: Buffer[] = []
  for await (const part of answer as AsyncIterable<Buffer>) {
    parts.push(part)
    if (pauseMs > 0) await new Promise((resolve) => setTimeout(resolve, pauseMs))
  }
  expect(answer.complete).toBe(true)
  return Buffer.concat(parts)
}

test.each([
  ['at once', 0],
  ['slowly', 5],
])('every export of 20,000 files is whole, read %s', async (_, pauseMs) => {
  const zip = join(mkdtempSync(join(runFolder(), 'many-')), 'many.zip')
  writeFileSync(zip, await slowly('/execution-runs/many/crate/?data=outputs', 'application/zip', pauseMs))
  const read =
    'import json,sys,zipfile; z=zipfile.ZipFile(sys.argv[1]); assert z.testzip() is None; ' +
    'm=json.loads(z.read("ro-crate-metadata.json")); n=set(z.namelist()); ' +
    'print(len(n), sum(e["@id"].startswith("data/") for e in m["@graph"]), ' +
    'sum(int(z.read(e)) for e in n if e.startswith("data/")))'
  const found = execFileSync('python3', ['-c', read, zip], { encoding: 'utf8' }).trim()
  expect(found).toBe(`${String(count + 3)} ${String(count)} ${String((count * (count + 1)) / 2)}`)
  for (const [path, accept] of [
    ['crate/', 'application/ld+json'],
    ['prov/', 'application/json'],
  ] as const) {
    const document = String(await slowly(`/execution-runs/many/${path}`, accept, pauseMs))
    expect(document.split('sha256').length).toBeGreaterThan(count)
    JSON.parse(document)
  }
})

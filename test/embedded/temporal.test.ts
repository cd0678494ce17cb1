import { execFileSync, spawn } from 'node:child_process'
import { chmodSync, mkdirSync, mkdtempSync, readFileSync, writeFileSync } from 'node:fs'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from '@jest/globals'
import { Client, Connection } from '@temporalio/client'
import { freePort } from '../../src/embedded/ports.ts'
import { stillRuns } from '../../src/embedded/processes.ts'
import { findTemporalProgram, temporalVersion } from '../../src/embedded/temporal-program.ts'
import { searchAttributeTypes } from '../../src/embedded/temporal-settings.ts'
import { openTemporal, temporalFiles } from '../../src/embedded/temporal.ts'
import type { EmbeddedTemporal } from '../../src/embedded/temporal.ts'
import { openLog } from '../../src/observability/log.ts'
import { cacheDir, childEnvironment, temporaryFolder, until } from './folder.ts'
import { proved } from '../support/share.ts'

const log = openLog('silent')
const quiet = { log, environment: childEnvironment, onProgress: () => undefined }
const folder = temporaryFolder()
const open = (): Promise<EmbeddedTemporal> =>
  openTemporal({ ...quiet, dataDir: folder.path, cacheDir, namespace: 'default', program: undefined })

// The program is built here where the cache has none: minutes, once per machine.
beforeAll(() => findTemporalProgram({ ...quiet, named: undefined, cacheDir }), 900_000)
afterAll(() => {
  folder[Symbol.dispose]()
})

const withClient = async <T>(address: string, work: (client: Client) => Promise<T>): Promise<T> => {
  const connection = await Connection.connect({ address })
  try {
    return await work(new Client({ connection }))
  } finally {
    await connection.close()
  }
}
const startOne = (client: Client, id: string) =>
  client.workflow.start('none', {
    taskQueue: 'nobody',
    workflowId: id,
    searchAttributes: { RecordId: [id], RunState: ['running'] },
  })

describe('the embedded Temporal server', () => {
  test('has the namespace, retention and search attributes of temporal-config and its page, and keeps ports and histories over kill and restart', async () => {
    const first = await open()
    const description = await withClient(first.address, async (client) => {
      await startOne(client, 'kept-1')
      return client.workflowService.describeNamespace({ namespace: 'default' })
    })
    expect(Number(description.config?.workflowExecutionRetentionTtl?.seconds)).toBe(168 * 3600)
    expect((await fetch(first.uiUrl)).status).toBe(200)
    expect(await (await fetch(first.metricsUrl)).text()).toContain('service_requests')

    const before = first.process()
    process.kill(before?.pid ?? -1, 'SIGKILL')
    await until(() => first.process() !== undefined && first.process()?.pid !== before?.pid, 'it runs again')
    const found = await until(
      () =>
        withClient(first.address, async (client) => {
          const ids: string[] = []
          for await (const workflow of client.workflow.list({ query: 'RecordId = "kept-1"' }))
            ids.push(workflow.workflowId)
          return ids.length > 0 && ids
        }),
      'the history is there',
    )
    expect(found).toEqual(['kept-1'])
    const server = first.process()
    await first.stop()
    expect(server !== undefined && stillRuns(server)).toBe(false)

    const second = await open()
    expect([second.address, second.uiUrl]).toEqual([first.address, first.uiUrl])
    expect(
      (await withClient(second.address, (client) => client.workflow.getHandle('kept-1').describe())).status
        .name,
    ).toBe('RUNNING')
    await second.stop()
  })

  test('listens on loopback only', async () => {
    const server = await open()
    const sockets = execFileSync(
      'cat',
      [`/proc/${server.process()?.pid}/net/tcp`, `/proc/${server.process()?.pid}/net/tcp6`],
      {
        encoding: 'utf8',
      },
    )
    const port = Number(server.address.split(':')[1]).toString(16).toUpperCase().padStart(4, '0')
    const listening = sockets.split('\n').filter((line) => line.includes(`:${port} `) && / 0A /.test(line))
    expect(listening).toHaveLength(1)
    expect(listening[0]).toContain('0100007F:')
    await server.stop()
  })

  proved('says which search attribute has another type than it needs, and what to do', async () => {
    const first = await open()
    await withClient(first.address, async ({ connection }) => {
      await connection.operatorService.removeSearchAttributes({
        namespace: 'default',
        searchAttributes: ['RunState'],
      })
      await connection.operatorService.addSearchAttributes({
        namespace: 'default',
        searchAttributes: { RunState: searchAttributeTypes.indexOf('Text') + 1 },
      })
    })
    await first.stop()
    await expect(open()).rejects.toThrow(
      /RunState is Text instead of Keyword\. .*move the folder temporal out of the data folder/,
    )
  })

  proved(
    'adds to a data folder of an earlier version the search attributes that it lacks; its open workflows go on',
    async () => {
      const older = join(folder.path, 'older')
      mkdirSync(join(older, 'temporal'), { recursive: true })
      const program = await findTemporalProgram({ ...quiet, named: undefined, cacheDir })
      const port = await freePort()
      const before = ['RecordKind', 'RecordId', 'RunState', 'RunMode']
      const server = spawn(
        program,
        [
          ...[
            'server',
            'start-dev',
            '--headless',
            '--ip',
            '127.0.0.1',
            '--port',
            String(port),
            '--db-filename',
            temporalFiles(older).data,
          ],
          ...before.flatMap((name) => ['--search-attribute', `${name}=Keyword`]),
          ...['--log-level', 'error', '--disable-config-file', '--disable-config-env'],
        ],
        { stdio: 'ignore', env: { HOME: older, PATH: '/usr/bin:/bin' } },
      )
      const ended = new Promise((resolve) => server.once('exit', resolve))
      const attributes = (address: string): Promise<string[]> =>
        withClient(address, async ({ connection }) =>
          Object.keys(
            (await connection.operatorService.listSearchAttributes({ namespace: 'default' }))
              .customAttributes ?? {},
          ),
        )
      const address = `127.0.0.1:${String(port)}`
      await until(
        () => withClient(address, (client) => startOne(client, 'open-1')).catch(() => undefined),
        'the older server has started one',
      )
      expect(await attributes(address)).toEqual(expect.not.arrayContaining(['WaitsFor']))
      server.kill('SIGTERM')
      await ended

      const today = await openTemporal({
        ...quiet,
        dataDir: older,
        cacheDir,
        namespace: 'default',
        program: undefined,
      })
      try {
        expect(await attributes(today.address)).toEqual(
          expect.arrayContaining([...before, 'WorkflowName', 'PlanId', 'WaitsFor']),
        )
        await withClient(today.address, async (client) => {
          expect((await client.workflow.getHandle('open-1').describe()).status.name).toBe('RUNNING')
          const searchAttributes = {
            RecordId: ['new-1'],
            WorkflowName: ['mosaic'],
            PlanId: ['plan'],
            WaitsFor: ['lane here'],
          }
          await client.workflow.start('none', { taskQueue: 'nobody', workflowId: 'new-1', searchAttributes })
        })
      } finally {
        await today.stop()
      }
    },
  )

  test('says with the end of its log why it cannot start', async () => {
    mkdirSync(join(folder.path, 'other', 'temporal'), { recursive: true })
    writeFileSync(temporalFiles(join(folder.path, 'other')).data, 'no database')
    await expect(
      openTemporal({
        ...quiet,
        dataDir: join(folder.path, 'other'),
        cacheDir,
        namespace: 'default',
        program: undefined,
      }),
    ).rejects.toThrow(/ended at its start[\s\S]*(not a database|SQLITE_NOTADB)/i)
  })
})

describe('the Temporal program', () => {
  const program = (text: string): string => {
    const path = join(mkdtempSync(join(folder.path, 'program-')), 'temporal')
    writeFileSync(path, `#!/bin/sh\n${text}\n`)
    chmodSync(path, 0o755)
    return path
  }
  const help =
    'echo --dynamic-config-value --sqlite-pragma --search-attribute --metrics-port --ui-port ' +
    '--ui-codec-endpoint --ui-disable-news-fetch'

  test('that is named comes first, the one on the search path second when it offers what is needed', async () => {
    const good = program(help)
    const old = program('echo --port')
    const options = { ...quiet, cacheDir: join(folder.path, 'unused') }
    expect(
      await findTemporalProgram({ ...options, named: good, environment: { PATH: join(old, '..') } }),
    ).toBe(good)
    await expect(findTemporalProgram({ ...options, named: old })).rejects.toThrow(
      /SERVICE_TEMPORAL_BINARY=.* does not offer --dynamic-config-value/,
    )
    expect(
      await findTemporalProgram({
        ...options,
        named: undefined,
        environment: { PATH: `/usr/bin:${join(good, '..')}` },
      }),
    ).toBe(good)
  })

  test('is downloaded once by many who ask at once, and only in the release that is expected', async () => {
    const archiveOf = (text: string): Buffer =>
      execFileSync('tar', ['-cz', '-C', join(program(text), '..'), 'temporal'])
    let requests = 0
    let archive = archiveOf(`echo temporal version ${temporalVersion}`)
    const host = createServer((_request, response) => {
      requests++
      response.end(archive)
    })
    await new Promise<void>((resolve) => host.listen(0, '127.0.0.1', resolve))
    const options = {
      ...quiet,
      named: undefined,
      environment: { PATH: '/usr/bin:/bin' },
      downloadAddress: `http://127.0.0.1:${(host.address() as AddressInfo).port}/`,
    }
    try {
      const cache = join(folder.path, 'cache-1')
      const found = await Promise.all(
        Array.from({ length: 5 }, () => findTemporalProgram({ ...options, cacheDir: cache })),
      )
      expect(new Set(found)).toEqual(new Set([join(cache, 'temporal', 'temporal')]))
      expect(requests).toBe(1)
      expect(readFileSync(join(cache, 'temporal', 'temporal'), 'utf8')).toContain(temporalVersion)

      // The fallback is a build, which is replaced by one that fails at once: what is asked here is
      // why it came to it.
      archive = archiveOf('echo temporal version 0.1.0')
      const compilers = mkdtempSync(join(folder.path, 'compilers-'))
      writeFileSync(
        join(compilers, 'go'),
        '#!/bin/sh\n[ "$1" = env ] && exit 0\necho no such module >&2; exit 1\n',
      )
      chmodSync(join(compilers, 'go'), 0o755)
      await expect(
        findTemporalProgram({
          ...options,
          environment: { PATH: `${compilers}:/usr/bin:/bin` },
          cacheDir: join(folder.path, 'cache-2'),
        }),
      ).rejects.toThrow(
        new RegExp(
          String.raw`go build ended with code 1 \(and the download is not release 1\.8\.2 but ` +
            String.raw`"temporal version 0\.1\.0"\)[\s\S]*no such module`,
        ),
      )
    } finally {
      host.close()
    }
  })
})

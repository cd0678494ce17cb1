import { expect, test } from '@jest/globals'
import { checked } from '../execution-runs/checked.ts'
import { overlapsOf } from '../execution-runs/checker.ts'
import { openService } from '../support/service.ts'
import { openProxy, type TcpProxy } from '../support/tcp-proxy.ts'
import { makeWorld } from '../support/worlds.ts'

test('a step that was executed and whose answer was lost is given again and changes nothing twice', async () => {
  const own = { port: 0 }
  // The proxy must listen before the service connects; the port of the real server is in the
  // database's own address.
  const proxy: TcpProxy = await openProxy(Number(new URL(process.env['ORRERY_TEST_DATABASE'] ?? '').port))
  own.port = proxy.port
  const service = await openService({
    databaseUrl: (url) => {
      const through = new URL(url)
      through.port = String(own.port)
      return through.href
    },
  })
  try {
    const tasks = Array.from({ length: 40 }, (_, i) => ({
      name: `t${String(i)}`,
      run: i % 7 === 0 ? '[ $AKOFLOW_ATTEMPT -ge 2 ] && echo 1 > made' : 'echo 1 > made; sleep 0.2',
      after: i < 4 ? [] : [`t${String(i - 4)}`],
      outputs: ['made'],
      policy: { maxAttempts: 2 },
      ...(i % 2 === 0 ? { stage: 'declared' as const } : {}),
    }))
    const world = await makeWorld(service, { name: 'lossy', cores: [2, 2], tasks })
    let steps = 0
    let lost = 0
    proxy.loseAnswerOf = (sent) => {
      // A Bind message names the prepared statement; its first part is Parse with the text.
      if (!sent.includes('commit_site')) return false
      steps += 1
      if (steps % 3 !== 0) return false
      lost += 1
      return true
    }
    await Promise.all(
      ['lossy-a', 'lossy-b'].map((id) =>
        service.post('/execution-runs/', { id, schedulePlanId: world.planId, mode: 'real' }),
      ),
    )
    const details = await Promise.all(['lossy-a', 'lossy-b'].map((id) => service.finished(id, 120)))
    proxy.loseAnswerOf = undefined
    expect(lost).toBeGreaterThan(20)
    expect(
      details.map(({ run }) => [run.status, run.completedActivityCount, run.failedActivityCount]),
    ).toEqual([
      ['completed', 40, 0],
      ['completed', 40, 0],
    ])
    const records = await Promise.all(['lossy-a', 'lossy-b'].map((id) => checked(service, world, id)))
    for (const { activities } of records) {
      expect(activities).toHaveLength(46)
      expect(activities.filter((task) => task.status === 'failed')).toHaveLength(6)
    }
    expect(overlapsOf(records)).toEqual([])
    for (const { dataObjects } of details)
      expect(new Set(dataObjects.map((object: any) => object.id)).size).toBe(dataObjects.length)
  } finally {
    await service[Symbol.asyncDispose]()
    await proxy.close()
  }
})

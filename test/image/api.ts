import { readFileSync } from 'node:fs'
import { parse } from 'yaml'
import { openClient } from '../support/client.ts'

/** Of the service in its image. */
export const dataFolder = '/var/lib/orrery'

const example = (name: string): string =>
  readFileSync(new URL(`../../examples/hello/${name}.yaml`, import.meta.url), 'utf8')

const waitForGate = `is_open() { folder=$PWD; while [ -n "$folder" ]; do
  [ ! -e "$folder/gate" ] || return 0; folder=\${folder%/*}; done; return 1; }
until is_open; do sleep 0.2; done
echo open | tee gate.txt`

/**
 * Three steps of two seconds, and one that ends when somebody makes the file `gate` in the host's
 * data folder, above the task's own.
 */
const gatedWorkflow = {
  name: 'steps',
  spec: {
    namespace: 'examples',
    image: 'busybox:1.36',
    activities: ['one', 'two', 'three', 'gate'].map((name, index, names) => ({
      name,
      run: name === 'gate' ? waitForGate : `sleep 2; echo "step ${name}"`,
      cpuLimit: '1',
      memoryLimit: '16Mi',
      ...(index === 0 ? {} : { dependsOn: [names[index - 1]] }),
      ...(name === 'gate' ? { expectedOutputs: ['gate.txt'] } : {}),
    })),
  },
}

/**
 * A service that runs elsewhere, as its user meets it: over HTTP, with the documents of
 * `examples/hello`.
 */
export const openApi = (url: string, token: string | undefined) => {
  const client = openClient(url, { headers: token === undefined ? {} : { authorization: `Bearer ${token}` } })
  const { get, post } = client
  let planId = 'hello-plan'
  return {
    url,
    get,
    post,
    async storeHello(): Promise<void> {
      await post('/workflow-definitions/', example('workflow'))
      await post('/environments/', example('environment'))
      await post('/execution-scopes/', example('scope'))
      await post('/schedule-plans/import/', example('plan'))
    },
    /**
     * The same inventory under other ids, its processes bound to another host; runs from now on are
     * made of its plan.
     */
    async storeHelloOn(hostId: string): Promise<void> {
      const renamed = (name: string): any =>
        parse(
          example(name)
            .replaceAll(/hello-(?!v1)/g, `${hostId}-`)
            .replace('id: hello,', `id: ${hostId},`),
        )
      const environment = renamed('environment')
      environment.version.id = `${hostId}-v1`
      environment.runtimes[0].configuration = { hostId }
      await post('/environments/', environment)
      await post('/execution-scopes/', { ...renamed('scope'), environmentVersionIds: [`${hostId}-v1`] })
      await post('/schedule-plans/import/', renamed('plan'))
      planId = `${hostId}-plan`
    },
    /** The inventory of `gatedWorkflow` on the processes of one host; plan `steps-<host>`. */
    async storeSteps(hostIds: readonly string[]): Promise<void> {
      await post('/workflow-definitions/', gatedWorkflow)
      for (const hostId of hostIds) {
        const id = `steps-${hostId}`
        await post('/environments/', {
          environment: { id, name: hostId },
          version: { id: `${id}-v1`, version: 1, status: 'published' },
          runtimes: [{ id, name: hostId, driver: 'local', mode: 'execution', configuration: { hostId } }],
          resources: [
            {
              ...{
                id,
                name: hostId,
                type: 'local_machine',
                providerId: id,
                executionTarget: 'direct',
                schedulable: true,
              },
              ...{ cpuCores: 1, cpuCapacity: 1, memoryBytes: 2 ** 30, computeSpeedup: 1 },
            },
          ],
          resourceRuntimeBindings: [{ resourceId: id, runtimeId: id, enabled: true }],
        })
        await post('/execution-scopes/', { id, name: hostId, environmentVersionIds: [`${id}-v1`] })
        const assignments = gatedWorkflow.spec.activities.map(({ name }, index) => ({
          ...{ activityId: name, resourceId: id, coreId: 'core-0', orderOnResource: index + 1 },
        }))
        await post('/schedule-plans/import/', {
          plan: {
            id,
            workflowVersionId: 'steps-v1',
            executionScopeId: id,
            source: 'manual',
            algorithm: 'by-hand',
            assignments,
          },
        })
      }
    },
    async start(id: string, schedulePlanId: string, mode: 'real' | 'simulation' = 'real'): Promise<void> {
      await post('/execution-runs/', { id, schedulePlanId, mode })
    },
    /**
     * Waits, also while the service is away for a moment; throws with what the run says when it
     * does not complete.
     */
    async completed(id: string, withinSeconds = 120): Promise<void> {
      const deadline = Date.now() + withinSeconds * 1_000
      for (;;) {
        const detail = await get(`/execution-runs/${id}/`).catch((error: unknown) => ({
          run: { status: String(error) },
        }))
        if (detail.run.status === 'completed') return
        if (['failed', 'cancelled'].includes(detail.run.status) || Date.now() > deadline)
          throw new Error(
            `run ${id} is ${String(detail.run.status)}: ${JSON.stringify(detail).slice(0, 4_000)}`,
          )
        await new Promise((resolve) => setTimeout(resolve, 100))
      }
    },
    /** Runs the stored plan; throws with what the run says when it does not complete. */
    async runToEnd(id: string, mode: 'real' | 'simulation' = 'real', withinSeconds = 120): Promise<void> {
      await this.start(id, planId, mode)
      await this.completed(id, withinSeconds)
    },
  }
}

export type Api = ReturnType<typeof openApi>

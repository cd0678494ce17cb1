import { z } from 'zod'
import type { Db } from '../../db/sql.ts'
import { pagedArray, pageOf, pageQuery } from '../../http/paging.ts'
import { Reply, route, type Route } from '../../http/route.ts'
import type { SiteShell } from '../../shell/site-shell.ts'
import { openPlaybooks } from './playbooks.ts'
import {
  MachineConfiguration,
  NewMachineConfiguration,
  NewMachineConfigurationVersion,
  PlaybookToValidate,
  PlaybookVerdict,
} from './schemas.ts'
import {
  addConfigurationVersion,
  createMachineConfiguration,
  listMachineConfigurations,
  readMachineConfiguration,
} from './store.ts'

const tag = 'machine-configurations'

export interface MachineConfigurationParts {
  db: Db
  links: { localShell: SiteShell }
}

export const machineConfigurationRoutes = ({ db, links }: MachineConfigurationParts): Route[] => {
  const playbooks = openPlaybooks(links.localShell)
  return [
    route({
      method: 'GET',
      path: '/machine-configurations/',
      tag,
      summary: 'Machine configurations by name, each with its versions, newest first',
      query: z.strictObject(pageQuery),
      response: z.array(MachineConfiguration),
      handle: async ({ query, target }) => {
        const page = pageOf(query, { usual: 20, largest: 100, beyond: 'largest' })
        const { rows, total } = await listMachineConfigurations(db, page)
        return pagedArray(rows, { page, total, target })
      },
    }),
    route({
      method: 'POST',
      path: '/machine-configurations/',
      tag,
      summary: 'Name a machine configuration; its playbooks are added as versions',
      body: NewMachineConfiguration,
      response: MachineConfiguration,
      status: 201,
      audit: {
        eventType: 'machine-configuration.created',
        summary: ({ body }) => `machine configuration ${(body as NewMachineConfiguration).name} created`,
      },
      handle: async ({ body }) => {
        const id = await createMachineConfiguration(db, body)
        return new Reply({
          body: await readMachineConfiguration(db, id),
          headers: { location: `/machine-configurations/${encodeURIComponent(id)}/` },
        })
      },
    }),
    route({
      method: 'GET',
      path: '/machine-configurations/{configurationId}/',
      tag,
      summary: 'One machine configuration with its versions, newest first',
      response: MachineConfiguration,
      handle: ({ params }) => readMachineConfiguration(db, params.configurationId),
    }),
    route({
      method: 'POST',
      path: '/machine-configurations/{configurationId}/versions/',
      tag,
      summary: 'Add a version, which never changes; its playbook is checked first',
      body: NewMachineConfigurationVersion,
      response: MachineConfiguration,
      status: 201,
      refuses: [503],
      audit: {
        eventType: 'machine-configuration.version-added',
        summary: ({ params }) => `version added to machine configuration ${params['configurationId'] ?? ''}`,
      },
      handle: async ({ params, body }) => {
        await readMachineConfiguration(db, params.configurationId)
        const contentSha256 = await playbooks.accept(body.playbookYaml)
        await addConfigurationVersion(db, params.configurationId, { ...body, contentSha256 })
        return new Reply({
          body: await readMachineConfiguration(db, params.configurationId),
          headers: { location: `/machine-configurations/${encodeURIComponent(params.configurationId)}/` },
        })
      },
    }),
    route({
      method: 'POST',
      path: '/machine-configuration-validations/',
      tag,
      summary:
        'Whether a playbook may be kept: by the rules of the service and by ansible-playbook in a ' +
        'sandbox; stores nothing',
      body: PlaybookToValidate,
      response: PlaybookVerdict,
      refuses: [503],
      audit: false,
      handle: async ({ body }) => ({
        valid: true as const,
        sha256: await playbooks.accept(body.playbookYaml),
      }),
    }),
  ]
}

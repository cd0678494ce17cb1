import type { Db } from '../../db/sql.ts'
import { longListRoute } from '../../http/list-route.ts'
import { Reply, route, type Route } from '../../http/route.ts'
import { missing } from '../../refusal.ts'
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
  machineConfigurationTexts,
  readMachineConfiguration,
} from './store.ts'

export interface MachineConfigurationParts {
  db: Db
  links: { localShell: SiteShell }
}

export const machineConfigurationRoutes = ({ db, links }: MachineConfigurationParts): Route[] => {
  const playbooks = openPlaybooks(links.localShell)
  const idOf = (newId: string): string => `machine-configuration-${newId}`
  const versionIdOf = (configurationId: string, newId: string): string => `${configurationId}-${newId}`
  const stored = async (id: string) => {
    const document = await readMachineConfiguration(db, id)
    const headers = { location: `/machine-configurations/${encodeURIComponent(id)}/` }
    return { document, reply: new Reply({ body: document, headers }) }
  }
  return [
    longListRoute('listMachineConfigurations', 'GET /machine-configurations/', {
      summary: 'Machine configurations by name, each with its versions, newest first',
      item: MachineConfiguration,
      ids: (page) => listMachineConfigurations(db, page),
      texts: (ids) => machineConfigurationTexts(db, ids),
    }),
    route('createMachineConfiguration', 'POST /machine-configurations/', {
      summary: 'Name a machine configuration; its playbooks are added as versions',
      body: NewMachineConfiguration,
      response: MachineConfiguration,
      status: 201,
      audit: { eventType: 'machine-configuration.created', summary: 'machine configuration {name} created' },
      made: async ({ newId }) => {
        const { document, reply } = await stored(idOf(newId))
        return { createdAt: document.createdAt, answer: reply }
      },
      handle: async ({ body, newId }) => {
        const id = body.id ?? idOf(newId)
        await createMachineConfiguration(db, { ...body, id })
        return (await stored(id)).reply
      },
    }),
    route('getMachineConfiguration', 'GET /machine-configurations/{configurationId}/', {
      summary: 'One machine configuration with its versions, newest first',
      response: MachineConfiguration,
      handle: ({ params }) => readMachineConfiguration(db, params.configurationId),
    }),
    route('createConfigurationVersion', 'POST /machine-configurations/{configurationId}/versions/', {
      summary: 'Add a version, which never changes; its playbook is checked first',
      body: NewMachineConfigurationVersion,
      response: MachineConfiguration,
      status: 201,
      refuses: [503],
      audit: {
        eventType: 'machine-configuration.version-added',
        summary: 'version added to machine configuration {configurationId}',
      },
      made: async ({ params: { configurationId }, newId }) => {
        const { document, reply } = await stored(configurationId)
        const version = document.versions.find(({ id }) => id === versionIdOf(configurationId, newId))
        if (version === undefined) throw missing('machine configuration version', newId)
        return { createdAt: version.createdAt, answer: reply }
      },
      handle: async ({ params: { configurationId }, body, newId }) => {
        await readMachineConfiguration(db, configurationId)
        const contentSha256 = await playbooks.accept(body.playbookYaml)
        const id = body.id ?? versionIdOf(configurationId, newId)
        await addConfigurationVersion(db, configurationId, { ...body, id, contentSha256 })
        return (await stored(configurationId)).reply
      },
    }),
    route('validateMachineConfiguration', 'POST /machine-configuration-validations/', {
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

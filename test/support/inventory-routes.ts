import type { Database } from '../../src/db/pool.ts'
import { auditEventRoutes } from '../../src/domains/audit-events/routes.ts'
import { environmentRoutes } from '../../src/domains/environments/routes.ts'
import { executionScopeRoutes } from '../../src/domains/execution-scopes/routes.ts'
import { systemInstanceRoutes, type SystemInstanceParts } from '../../src/domains/instance/routes.ts'
import { networkTopologyRoutes } from '../../src/domains/network-topologies/routes.ts'
import { resourceRoutes } from '../../src/domains/resources/routes.ts'
import { openLocalShell } from '../../src/shell/local-shell.ts'
import type { Route } from '../../src/http/route.ts'
import { uses } from '../../src/uses.ts'

/** The routes of the inventory, for `openRoutes`. */
export const inventoryRoutes =
  (parts: Partial<Omit<SystemInstanceParts, 'db' | 'links'>> = {}) =>
  (db: Database, atClose: AsyncDisposableStack): Route[] => {
    const localShell = openLocalShell()
    atClose.defer(() => localShell.close())
    return [
      ...systemInstanceRoutes({
        ...{
          db,
          links: { localShell },
          engineSockets: { docker: '/nowhere', podman: '/nowhere' },
          buildkitSocket: '/nowhere',
        },
        ...parts,
      }),
      ...environmentRoutes({ db, uses, links: { changing: (_of, change) => change() } }),
      ...resourceRoutes({ db, uses }),
      ...networkTopologyRoutes({ db }),
      ...executionScopeRoutes({ db, uses }),
      ...auditEventRoutes({ db }),
    ]
  }

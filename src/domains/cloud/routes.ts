import type { Route } from '../../http/route.ts'
import { catalogRoutes } from './catalog-routes.ts'
import type { Clouds } from './clouds.ts'
import { orphanRoutes } from './orphan-routes.ts'
import { cloudOperationRoutes, instanceRoutes, type InstanceParts } from './instance-routes.ts'
import { targetRoutes } from './target-routes.ts'

/** All of the cloud, in the specification's order. */
export const cloudRoutes = (parts: InstanceParts & { clouds: Clouds }): Route[] => [
  ...targetRoutes(parts),
  ...instanceRoutes(parts),
  ...cloudOperationRoutes(parts),
  ...catalogRoutes(parts),
  ...orphanRoutes(parts),
]

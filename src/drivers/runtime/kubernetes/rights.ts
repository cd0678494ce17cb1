import type { KubernetesCluster } from '../../../clients/kubernetes-cluster.ts'
import { KubernetesError } from '../../../clients/kubernetes.ts'

/** The rights for running tasks in a namespace. */
export const neededRights = [
  ['batch', 'jobs', ['create', 'get', 'list', 'delete']],
  ['', 'pods', ['create', 'get', 'list', 'watch', 'delete', 'deletecollection']],
  // A WebSocket is a GET; since 1.35 opening one takes `create` as well.
  ['', 'pods/exec', ['create', 'get']],
] as const

interface Rule {
  verbs?: string[]
  apiGroups?: string[]
  resources?: string[]
  resourceNames?: string[]
}

const holds = (list: readonly string[] | undefined, value: string): boolean =>
  list?.includes('*') === true || list?.includes(value) === true

/**
 * The rights that the account of a token lacks in a namespace, as `create jobs.batch`; empty if it
 * has all. One request, and one for each right that the server's list of rules does not show, as a
 * list may be incomplete.
 *
 * @throws KubernetesError, with status 404 for a missing namespace (where the
 *   account may query that)
 */
export async function missingRights(
  cluster: Pick<KubernetesCluster, 'request'>,
  namespace: string,
): Promise<string[]> {
  await cluster.request({ path: `/api/v1/namespaces/${namespace}` }).catch((error: unknown) => {
    // Whether it exists is the cluster's matter; the rights in it are checked below.
    if (error instanceof KubernetesError && error.status === 403) return
    if (error instanceof KubernetesError && error.status === 404)
      throw new KubernetesError(
        'login',
        `the namespace ${namespace} does not exist; have it made, or name another`,
        {
          cause: error,
          status: 404,
          permanent: true,
        },
      )
    throw error
  })
  const { status } = await cluster.request<{ status?: { resourceRules?: Rule[] } }>({
    verb: 'create',
    path: '/apis/authorization.k8s.io/v1/selfsubjectrulesreviews',
    body: { apiVersion: 'authorization.k8s.io/v1', kind: 'SelfSubjectRulesReview', spec: { namespace } },
  })
  const rules = status?.resourceRules ?? []
  const unseen = neededRights.flatMap(([group, resource, verbs]) =>
    verbs
      .filter(
        (verb) =>
          !rules.some(
            (rule) =>
              holds(rule.verbs, verb) &&
              holds(rule.apiGroups, group) &&
              holds(rule.resources, resource) &&
              (rule.resourceNames ?? []).length === 0,
          ),
      )
      .map((verb) => ({ group, resource, verb })),
  )
  const asked = await Promise.all(
    unseen.map(async ({ group, resource, verb }) => {
      const [name, subresource] = resource.split('/')
      const review = await cluster.request<{ status?: { allowed?: boolean } }>({
        verb: 'create',
        path: '/apis/authorization.k8s.io/v1/selfsubjectaccessreviews',
        body: {
          apiVersion: 'authorization.k8s.io/v1',
          kind: 'SelfSubjectAccessReview',
          spec: {
            resourceAttributes: {
              namespace,
              verb,
              group,
              resource: name,
              ...(subresource === undefined ? {} : { subresource }),
            },
          },
        },
      })
      return review.status?.allowed === true ? [] : [`${verb} ${resource}${group === '' ? '' : `.${group}`}`]
    }),
  )
  return asked.flat()
}

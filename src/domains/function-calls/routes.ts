import { Reply, route, type Route } from '../../http/route.ts'
import type { LinkPurpose } from '../../drivers/runtime/serverless/links.ts'
import { Refusal } from '../../refusal.ts'
import { AnswerReceipt, GivenAnswer, LinkQuery, OutputPart, PartReceipt } from './schemas.ts'
import type { FunctionCalls } from './store.ts'

/** The limit of a synchronous answer, with base64 and JSON around the outputs included. */
const largestAnswer = 100 * 1024 * 1024
/** 4 MiB in base64, with room for the members around it. */
const largestPart = 6 * 1024 * 1024 + 4096

/**
 * The routes that a function calls: its own answer, inputs and outputs by reference. They need no
 * token, since a function has none. Every request carries the signed link that was sent with its
 * call.
 */
export const functionCallRoutes = ({
  functionCalls,
}: {
  functionCalls: FunctionCalls | undefined
}): Route[] => {
  const opened = (): FunctionCalls => {
    if (functionCalls !== undefined) return functionCalls
    throw new Refusal(
      'unavailable',
      'the vault has no key, so links for functions cannot be signed; name a key file in SERVICE_VAULT_KEY_FILE',
    )
  }
  /** A request without a link cannot make the service read a large body. */
  const admit =
    (purpose: LinkPurpose) =>
    ({ params, query }: { params: Record<string, string>; query: unknown }) =>
      opened().admitted(params['name'] ?? '', purpose, LinkQuery.parse(query))
  return [
    route('reportFunctionResult', 'POST /function-calls/{name}/result/', {
      summary: 'The answer of a function that was called asynchronously; the first one counts',
      public: true,
      whileActivated: true,
      query: LinkQuery,
      admit: admit('result'),
      body: GivenAnswer,
      limitBytes: largestAnswer,
      response: AnswerReceipt,
      refuses: [401, 423],
      audit: { eventType: 'function-call.answered', summary: 'function call {name} answered' },
      handle: async ({ params, query, body }) => ({
        name: params.name,
        kept: await opened().answer(params.name, query, body),
      }),
    }),
    route('readFunctionInput', 'GET /function-calls/{name}/inputs/{path}', {
      summary: 'An input of a call that is read by reference',
      public: 'get',
      query: LinkQuery,
      raw: ['application/octet-stream'],
      streams: true,
      refuses: [401],
      handle: async ({ params, query }) => {
        const { stream, sizeBytes } = await opened().input(params.name, params.path, query)
        return new Reply({ stream, headers: { 'content-length': String(sizeBytes) } })
      },
    }),
    route('writeFunctionOutput', 'PUT /function-calls/{name}/outputs/{path}', {
      summary: 'A part of an output, before the answer that lists it',
      public: true,
      whileActivated: true,
      query: LinkQuery,
      admit: admit('outputs'),
      body: OutputPart,
      limitBytes: largestPart,
      response: PartReceipt,
      refuses: [401, 409, 423],
      audit: { eventType: 'function-call.uploaded', summary: 'output of function call {name} uploaded' },
      handle: async ({ params, query, body }) => ({
        path: params.path,
        sizeBytes: await opened().upload(params.name, params.path, query, body),
      }),
    }),
  ]
}

import type { EC2Client, EC2ClientConfig } from '@aws-sdk/client-ec2'
import type { AwsKey } from './aws-key.ts'
import { HttpError } from './http-error.ts'
import type { Http } from './http.ts'

export interface AwsRegion {
  region: string
  /** Replaces the region's own address. */
  endpoint?: string | undefined
}

/** EC2 refused, with its code, or gave no answer, with the reason. */
export class Ec2Error extends Error {
  readonly code: string
  readonly status: number | undefined
  constructor(code: string, message: string, status?: number) {
    super(message)
    this.name = 'Ec2Error'
    this.code = code
    this.status = status
  }
}

/** Loading the libraries takes 0.3 s, and many deployments have no cloud. */
const libraries = () => Promise.all([import('@aws-sdk/client-ec2'), import('@aws-sdk/client-sts')])
const pricing = () => import('@aws-sdk/client-pricing')
type Libraries = Awaited<ReturnType<typeof libraries>>

const mostProducts = 5_000
const connectMs = 10_000
const answerMs = 30_000

/** An endpoint at AWS is that of EC2 alone; any other one answers for its other services too. */
const placeOfOthers = ({ region, endpoint = '' }: AwsRegion): AwsRegion => {
  const host = URL.canParse(endpoint) ? new URL(endpoint).hostname : ''
  return endpoint === '' || /\.(amazonaws\.com(\.cn)?|api\.aws|api\.amazonwebservices\.com\.cn)$/.test(host)
    ? { region }
    : { region, endpoint }
}

const errorOf = (error: unknown): Ec2Error => {
  const { name, message, $metadata, code } = error as Error & {
    $metadata?: { httpStatusCode?: number }
    code?: string
  }
  if ($metadata?.httpStatusCode !== undefined)
    return new Ec2Error(name, `${name}: ${message}`.slice(0, 400), $metadata.httpStatusCode)
  if (error instanceof HttpError) return new Ec2Error(error.fault, error.message)
  return new Ec2Error(code ?? name, `no answer: ${message || (code ?? name)}`.slice(0, 400))
}

const settingsOf = (http: Http, place: AwsRegion, key: AwsKey): EC2ClientConfig => {
  const { 'http:': httpAgent, 'https:': httpsAgent } = http.agents.kept
  return {
    region: place.region,
    ...(place.endpoint === undefined ? {} : { endpoint: place.endpoint }),
    credentials: { ...key },
    // The caller decides whether and when to retry.
    maxAttempts: 1,
    requestHandler: {
      ...{ httpAgent, httpsAgent, connectionTimeout: connectMs, requestTimeout: answerMs },
      ...{ throwOnRequestTimeout: true, socketTimeout: answerMs },
    },
    defaultUserAgentProvider: () => Promise.resolve([['orrery', '1']]),
  }
}

/**
 * EC2 and STS of one account and region. Only addresses that were judged are connected to; requests
 * go out once. No client of the library is destroyed: that would end the agents of `http`, and with
 * them the open requests of all others that use it.
 */
export const openEc2 = (options: { http: Http; place: AwsRegion; key: AwsKey }) => {
  const settings = settingsOf(options.http, options.place, options.key)
  const settingsOfOthers: object = settingsOf(options.http, placeOfOthers(options.place), options.key)
  let opened: { ec2: EC2Client; sdk: Libraries[0] } | undefined
  const open = async () => {
    const [sdk] = await libraries()
    return (opened ??= { ec2: new sdk.EC2Client(settings), sdk })
  }
  return {
    region: options.place.region,
    /** Asks EC2. @throws Ec2Error */
    async ask<T>(work: (ec2: EC2Client, sdk: Libraries[0]) => Promise<T>): Promise<T> {
      const { ec2, sdk } = await open()
      try {
        return await work(ec2, sdk)
      } catch (error) {
        throw errorOf(error)
      }
    },
    /** The account and name of the key. @throws Ec2Error */
    async identity(): Promise<{ account: string; arn: string }> {
      const [, sts] = await libraries()
      const client = new sts.STSClient(settingsOfOthers)
      try {
        const { Account = '', Arn = '' } = await client.send(new sts.GetCallerIdentityCommand({}))
        return { account: Account, arn: Arn }
      } catch (error) {
        throw errorOf(error)
      }
    },
    /**
     * The entries of EC2's price list that match all filters. AWS answers for every region from a
     * few of them. @throws Ec2Error
     */
    async products(filters: Readonly<Record<string, string>>): Promise<unknown[]> {
      const sdk = await pricing()
      const client = new sdk.PricingClient({ ...settingsOfOthers, region: 'us-east-1' })
      const found: unknown[] = []
      try {
        let next: string | undefined
        do {
          const token = next
          const page = await client.send(
            new sdk.GetProductsCommand({
              ...{ ServiceCode: 'AmazonEC2', FormatVersion: 'aws_v1', MaxResults: 100 },
              Filters: Object.entries(filters).map(([Field, Value]) => ({
                Type: 'TERM_MATCH',
                Field,
                Value,
              })),
              ...(token === undefined ? {} : { NextToken: token }),
            }),
          )
          for (const text of page.PriceList ?? []) found.push(JSON.parse(String(text)))
          next = page.NextToken
        } while (next !== undefined && found.length < mostProducts)
        return found
      } catch (error) {
        throw errorOf(error)
      }
    },
  }
}

export type Ec2 = ReturnType<typeof openEc2>

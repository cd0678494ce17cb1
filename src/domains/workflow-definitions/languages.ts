import { memberText, type Fields } from '../../json-object.ts'
import { unacceptable, type Refusal } from '../../refusal.ts'

const remedy =
  'send its activities in the authoring form, or a WfCommons instance (WfFormat 1.5, 1.6) of one of its runs'

const keyLike =
  (pattern: RegExp) =>
  (body: Fields): string | undefined =>
    Object.keys(body).find((key) => pattern.test(key))
/** A document that has all of these keys. */
const withKeys =
  (first: string, ...others: string[]) =>
  (body: Fields): string | undefined =>
    [first, ...others].every((key) => Object.hasOwn(body, key)) ? first : undefined

/** Languages of documents, each with the key that shows it; undefined where none does. */
const documents: readonly (readonly [language: string, key: (body: Fields) => string | undefined])[] = [
  ['a Pegasus abstract workflow', keyLike(/^(x-)?pegasus$/i)],
  ['a CWL document', keyLike(/^(cwlVersion|\$graph)$/i)],
  [
    'a CWL document',
    (body) =>
      /^(Workflow|CommandLineTool|ExpressionTool|Operation)$/.test(memberText(body['class']))
        ? 'class'
        : undefined,
  ],
  [
    'a Galaxy workflow',
    (body) =>
      memberText(body['class']) === 'GalaxyWorkflow' ? 'class' : withKeys('a_galaxy_workflow')(body),
  ],
  [
    'an Argo document',
    (body) => (/^argoproj\.io\//.test(memberText(body['apiVersion'])) ? 'apiVersion' : undefined),
  ],
  [
    'a Tekton document',
    (body) => (/^tekton\.dev\//.test(memberText(body['apiVersion'])) ? 'apiVersion' : undefined),
  ],
  ['a Kubernetes manifest', withKeys('apiVersion', 'kind')],
  ['a Snakefile', keyLike(/^(rule|checkpoint)(\s+\w+)?$/)],
  ['a state machine (Amazon States Language)', withKeys('StartAt', 'States')],
  ['a Serverless Workflow', withKeys('document', 'do')],
  ['a Serverless Workflow', withKeys('specVersion', 'states')],
]

/** Languages of texts that are no documents, by what all stands at the start of some line. */
const texts: readonly (readonly [language: string, ...signs: RegExp[]])[] = [
  ['WDL', /^version[ \t]+(draft-\d|development|\d\.\d)[ \t]*$/m, /^(workflow|task|struct)[ \t]+\w+[ \t]*\{/m],
  [
    'Nextflow',
    /^(#!.*\bnextflow\b|nextflow\.(enable|preview)\.|process[ \t]+\w+[ \t]*\{|workflow([ \t]+\w+)?[ \t]*\{)/m,
  ],
  ['a Snakefile', /^(rule|checkpoint)([ \t]+\w+)?[ \t]*:/m],
  ['a DAG of HTCondor', /^JOB[ \t]+\S+[ \t]+\S+\.(sub|submit)\b/im],
  ['a program in Python', /^(from[ \t]+[\w.]+[ \t]+import|import[ \t]+[\w.]+|def[ \t]+\w+[ \t]*\()/m],
]

const said = (language: string): string => `this is ${language}, which is not read here; ${remedy}`

/** The refusal (422) of a document in the language of another system; undefined for any other. */
export const foreignDocument = (body: Fields): Refusal | undefined => {
  for (const [language, keyOf] of documents) {
    const path = keyOf(body)
    if (path !== undefined) return unacceptable([{ path, message: said(language) }])
  }
  return undefined
}

/** What a text in the language of another system is, and what to send instead; undefined for any other. */
export const foreignText = (text: string): string | undefined => {
  const language = texts.find(([, ...signs]) => signs.every((sign) => sign.test(text)))?.[0]
  return language === undefined ? undefined : said(language)
}
